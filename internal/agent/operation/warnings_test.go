package operation_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestFieldThatAProgramMisspellsIsShownAsAWarning(t *testing.T) {
	suite.Long(t, "further messages; see TestMessageOfAFailure")
	f := newCreated(t)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	const program = "name: demo\nruntime: yaml\nresources:\n  one:\n    type: test:index:Sleep\n    properties: {seconds: 0}\n    options: {version: 0.1.0"
	f.write("Pulumi.yaml", program+", customTimeouts: {creat: 5m}}\n")
	operation := f.succeed(preview)
	f.Expect(operation.GetWarnings()).To(ContainElement(Equal("Field 'creat' does not exist on Object 'customTimeouts' on Pulumi.yaml line 7")))
	f.Expect(operation.GetMessage()).To(And(HavePrefix("done in "), ContainSubstring("pulumi warned: Field 'creat' does not exist")))

	f.write("Pulumi.yaml", program+"}\n")
	operation = f.succeed(preview)
	f.Expect(operation.GetWarnings()).To(BeEmpty())
	f.Expect(operation.GetMessage()).To(MatchRegexp(`^done in [0-9.ms]+: create [0-9]$`))
}
