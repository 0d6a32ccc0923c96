package operation_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// withLanguage puts the language host of the tests beside the CLI, where an image has the language hosts of Pulumi.
func (f *fixture) withLanguage() {
	f.t.Helper()
	f.Expect(programs.Put(f.t.Context(), programs.LanguageHost, filepath.Join(filepath.Dir(f.options.Pulumi), programs.LanguageHost))).To(Succeed())
}

// The language hosts for Go, Node.js and Python are not available here. The test shows that it does not matter what runs a program.
func TestProgramsOfOtherLanguagesAreInstalledAndRun(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f := newFixture(t)
	f.withLanguage()
	f.write("Pulumi.yaml", "name: demo\nruntime: {name: outputs, options: {virtualenv: venv}}\n")
	f.write("requirements.txt", "one\ntwo\n")
	f.write("outputs.json", `{"plain": [1, true, "x"], "region": "config:region"}`)
	operation := f.succeed(up, withConfig(text("region", "eu")))
	f.Expect(string(operation.GetOutputs()["plain"].GetValue())).To(Equal(`[1,true,"x"]`))
	f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(Equal(`"eu"`))
	f.Expect(operation.GetProject()).To(And(HaveField("Name", "demo"), HaveField("Runtime", "outputs")))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("up "), HavePrefix("whoami"), HavePrefix("stack init "), HavePrefix("up ")))

	// Another program with the same dependencies costs one process.
	f.write("outputs.json", `{"plain": 2}`)
	operation = f.succeed(up)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up ")))
	f.Expect(operation.GetOutputs()).To(HaveLen(1))
	f.write("requirements.txt", "one\ntwo\nthree\n")
	f.succeed(preview)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("preview ")))

	f.write("requirements.txt", "missing\n")
	operation = f.fail(agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, up)
	f.Expect(operation.GetMessage()).To(ContainSubstring("no package is called missing"))
	f.write("requirements.txt", "one\n")
	f.write("outputs.json", "{")
	operation = f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, up)
	f.Expect(operation.GetMessage()).To(ContainSubstring("outputs.json: unexpected end of JSON input"))
	f.processes()
	f.succeed(destroy)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("destroy ")))

	f.write("Pulumi.yaml", "name: demo\nruntime: cobol\n")
	f.fail(agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, up)
}
