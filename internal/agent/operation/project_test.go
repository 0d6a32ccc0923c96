package operation_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestUnusableProgramsAreReported(t *testing.T) {
	suite.Long(t, "further messages; the recorded failures have them")
	f := newFixture(t)
	for _, test := range []struct {
		name, file, content string
		reason              agentpb.FailureReason
		message             string
		// early is true when no process is needed to find the problem.
		early bool
	}{
		{"no project file", "README.md", "hello", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "there is no Pulumi.yaml", true},
		{"broken YAML", "Pulumi.yaml", "name: demo\nruntime: yaml\n  outputs: [", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "Pulumi.yaml is not valid: yaml: line 3", true},
		{"not a mapping", "Pulumi.yaml", "- a\n- b\n", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "Pulumi.yaml is not valid: it is not a mapping", true},
		{"empty", "Pulumi.yaml", "# nothing\n", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "Pulumi.yaml is empty", true},
		{"no name", "Pulumi.yaml", "runtime: yaml\n", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "it has no name", true},
		{"unknown runtime", "Pulumi.yaml", "name: demo\nruntime: cobol\n", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "cobol", false},
		{"a member of the wrong type", "Pulumi.yaml", "name: demo\nruntime: yaml\nconfig: 3\n", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, "could not validate 'Pulumi.yaml'", false},
		{"an unknown variable", "Pulumi.yaml", "name: demo\nruntime: yaml\noutputs: {a: '${missing}'}\n", agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, "missing", false},
		{"an unknown variable in a variable", "Pulumi.yaml", "name: demo\nruntime: yaml\nvariables: {a: '${missing}'}\n", agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED,
			`config value "missing" not found; on Pulumi.yaml line 3`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fixture{WithT: NewWithT(t), t: t, runner: f.runner, home: f.home, state: f.state, project: t.TempDir(), commands: f.commands}
			f.write(test.file, test.content)
			operation := f.fail(test.reason, up)
			f.Expect(operation.GetMessage()).To(ContainSubstring(test.message))
			f.Expect(operation.GetMessage()).NotTo(ContainSubstring("\n"))
			f.Expect(len(f.processes()) == 0).To(Equal(test.early))
			t.Log(operation.GetMessage())
		})
	}
}

// It has what the state has, or what pulumi itself puts there.
func TestProjectMayHaveNoRuntime(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", "name: demo\n")
	for _, kind := range []agentpb.OperationKind{up, destroy} {
		operation := f.succeed(kind)
		f.Expect(operation.GetProject()).To(And(HaveField("Name", "demo"), HaveField("Runtime", "yaml")), "the API requires one")
		f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("install")))
	}
}

func TestUnusableStackNamesAreRefused(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	for _, name := range []string{"", "..", "a/b/c/d", "-x", "a/../b", "a b", "a\x00b"} {
		f.fail(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, up, func(request *agentpb.StartOperationRequest) { request.Stack = name })
	}
	f.Expect(f.processes()).To(BeEmpty())
	f.succeed(up, func(request *agentpb.StartOperationRequest) { request.Stack = "organization/demo/dev" })
}
