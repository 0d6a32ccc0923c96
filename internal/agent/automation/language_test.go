package automation_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// withLanguage puts the language host of the tests beside the CLI, where an image has those of Pulumi.
func (f *fixture) withLanguage() {
	f.t.Helper()
	output, err := exec.Command("go", "build", "-o", filepath.Join(filepath.Dir(f.options.Pulumi), "pulumi-language-outputs"),
		"../../../tests/languagehost").CombinedOutput()
	f.Expect(err).NotTo(HaveOccurred(), string(output))
}

// The language hosts for Go, Node.js and Python cannot be had here. This shows that whatever runs a program does not matter.
func TestProgramsOfOtherLanguagesAreInstalledAndRun(t *testing.T) {
	f := newFixture(t)
	f.withLanguage()
	f.write("Pulumi.yaml", "name: demo\nruntime: {name: outputs, options: {virtualenv: venv}}\n")
	f.write("requirements.txt", "one\ntwo\n")
	f.write("outputs.json", `{"plain": [1, true, "x"], "region": "config:region"}`)
	operation := f.run(up, withConfig(text("region", "eu")))
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(string(operation.GetOutputs()["plain"].GetValue())).To(Equal(`[1,true,"x"]`))
	f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(Equal(`"eu"`))
	f.Expect(operation.GetProject()).To(And(HaveField("Name", "demo"), HaveField("Runtime", "outputs")))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("up "), HavePrefix("stack init "), HavePrefix("up ")))

	// Another program with the same dependencies costs one process.
	f.write("outputs.json", `{"plain": 2}`)
	operation = f.run(up)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up ")))
	f.Expect(operation.GetOutputs()).To(HaveLen(1))
	f.write("requirements.txt", "one\ntwo\nthree\n")
	f.Expect(f.run(preview).GetState()).To(Equal(succeeded))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("preview ")))

	f.write("requirements.txt", "missing\n")
	operation = f.run(up)
	f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_INSTALL_FAILED), operation.GetMessage())
	f.Expect(operation.GetMessage()).To(ContainSubstring("no package is called missing"))
	f.write("requirements.txt", "one\n")
	f.write("outputs.json", "{")
	operation = f.run(up)
	f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_UPDATE_FAILED), operation.GetMessage())
	f.Expect(operation.GetMessage()).To(ContainSubstring("outputs.json: unexpected end of JSON input"))
	f.processes()
	f.Expect(f.run(destroy).GetState()).To(Equal(succeeded))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("destroy ")))

	f.write("Pulumi.yaml", "name: demo\nruntime: cobol\n")
	operation = f.run(up)
	f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_PROJECT_INVALID), operation.GetMessage())
}
