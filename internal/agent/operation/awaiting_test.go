package operation_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestResourcesThatTakeLongAreLeftToALaterUpdate(t *testing.T) {
	suite.Long(t, "further inputs of an operation; TestResourcesThatAProviderDoesNotWaitForAreNamed has the texts")
	f := newCreated(t)
	f.Expect(programs.PutProvider(f.t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	ready, other := filepath.Join(t.TempDir(), "ready"), filepath.Join(t.TempDir(), "other")
	f.write("Pulumi.yaml", fmt.Sprintf("name: demo\nruntime: yaml\nresources:\n"+
		"  slow:\n    type: test:index:Sleep\n    properties: {readyWith: %q}\n    options: {version: 0.1.0}\n"+
		"  other:\n    type: test:index:Sleep\n    properties: {file: %q}\n    options: {version: 0.1.0}\n", ready, other))
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_AWAITING, up)
	f.Expect(operation.GetMessage()).To(HavePrefix("not ready yet: test:index:Sleep slow. "))
	f.Expect(other).To(BeAnExistingFile())
	f.fail(agentpb.FailureReason_FAILURE_REASON_AWAITING, up)

	f.Expect(os.WriteFile(ready, nil, 0o600)).To(Succeed())
	f.Expect(f.succeed(up).GetResourceChanges()).To(HaveKeyWithValue("create", BeEquivalentTo(1)))
}
