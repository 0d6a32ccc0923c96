package compatibility_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

func TestProgramFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-program")
	s.apply("manifests/program")
	stack := s.awaitReady("program")
	state := s.state("program", "dev")
	output := func(name string) string { return string(stack.Status.Outputs[name].Raw) }
	for _, field := range []struct {
		path  string
		shows func(g *WithT)
	}{
		{"configuration", func(g *WithT) { g.Expect(output("count") + output("words")).To(Equal(`3["a","b"]`)) }},
		{"configuration.secret", func(g *WithT) { g.Expect(output("password")).To(Equal(`"[secret]"`)) }},
		{"variables", func(g *WithT) { g.Expect(s.read("first")).To(Equal("hello, world")) }},
		{"outputs", func(g *WithT) { g.Expect(output("greeting")).To(Equal(`"hello, world"`)) }},
		{"resources", func(g *WithT) { g.Expect(s.listFiles()).To(ConsistOf("first", "second")) }},
		{"name", func(g *WithT) { g.Expect(state).To(ContainSubstring("::renamed\"")) }},
		{"properties", func(g *WithT) { g.Expect(state).To(ContainSubstring(s.files + "/first")) }},
		{"options.additionalSecretOutputs", func(g *WithT) { g.Expect(state).To(ContainSubstring(`"additionalSecretOutputs":["content"]`)) }},
		{"options.customTimeouts", func(g *WithT) {
			g.Expect(state).To(ContainSubstring(`"customTimeouts":{"create":300,"update":360,"delete":420}`))
		}},
		{"options.deletedWith", func(g *WithT) { g.Expect(state).To(MatchRegexp(`"deletedWith":"urn:[^"]*::first"`)) }},
		{"options.dependsOn", func(g *WithT) { g.Expect(state).To(MatchRegexp(`"dependencies":\["urn:[^"]*::first"`)) }},
		{"options.parent", func(g *WithT) { g.Expect(state).To(MatchRegexp(`"parent":"urn:[^"]*::first"`)) }},
		{"options.provider", func(g *WithT) {
			g.Expect(state).To(MatchRegexp(`"provider":"urn:[^"]*pulumi:providers:test::provider::`))
		}},
		{"options.retainOnDelete", func(g *WithT) { g.Expect(state).To(ContainSubstring(`"retainOnDelete":true`)) }},
		{"get", func(g *WithT) {
			g.Expect(output("looked")).To(Equal(`"found"`))
			g.Expect(state).To(ContainSubstring(`"external":true`))
		}},
	} {
		t.Run(field.path, func(t *testing.T) { field.shows(NewWithT(t)) })
	}
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(s.program("program").Status.Artifact.Digest))

	s.patchProgram("program", "{program: {outputs: {greeting: changed}}}")
	s.AwaitStack("program", func(stack *pulumiv1.Stack) bool {
		return isReady(stack) && output("greeting") != systemtest.Output(stack, "greeting")
	})
	s.delete("program")
	s.Expect(s.listFiles()).To(ConsistOf("second"), "what is to be retained is")
}

// read returns the content of a file that a program wrote.
func (s *fixture) read(name string) string {
	content, err := os.ReadFile(filepath.Join(s.files, name))
	s.Succeed(err)
	return string(content)
}

func (s *fixture) program(name string) *pulumiv1.Program {
	program := &pulumiv1.Program{}
	s.Get(name, program)
	return program
}

// patchProgram applies the manifest with a change of its Program, as a user would.
func (s *fixture) patchProgram(name, change string) {
	objects := s.manifest("manifests/"+name, "")
	s.mergeProgram(objects, change)
	s.Expect(s.applyAll(objects)).To(Succeed())
}

func (s *fixture) mergeProgram(objects []*unstructured.Unstructured, change string) {
	var fields map[string]any
	s.Expect(yaml.Unmarshal([]byte(change), &fields)).To(Succeed())
	for _, object := range objects {
		if object.GetKind() == pulumiv1.ProgramKind {
			merge(object.Object, fields)
		}
	}
}

func TestMisusedProgramFieldsAreExplainedAndRecover(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	huge := strings.Repeat("x", 2_000_000)
	for _, test := range []struct {
		field, patch, refused string
		// reason is the reason of the Stack. says is a part of the message of the Stack and, if the Program cannot be rendered, of the
		// Program.
		reason, says string
	}{
		{"configuration (unknown type)", "{configuration: {word: {type: Vector}}}", "program.configuration.word.type", "", ""},
		{"configuration (neither type nor default)", "{configuration: {empty: {}}}", "", pulumiv1.RetryingAfterFailureReason, "either 'default' or 'type' is required"},
		{"variables (no expression)", "{variables: {greeting: '${word'}}", "", pulumiv1.RetryingAfterFailureReason, "unterminated interpolation"},
		{"variables (unknown name)", "{variables: {greeting: '${nobody}'}}", "", pulumiv1.RetryingAfterFailureReason, `resource, variable, or config value "nobody" not found`},
		{"variables (a circle)", "{variables: {greeting: '${other}', other: '${greeting}'}}", "", pulumiv1.RetryingAfterFailureReason, "circular"},
		{"outputs (unknown name)", "{outputs: {greeting: '${nobody}'}}", "", pulumiv1.RetryingAfterFailureReason, "nobody"},
		{"resources (without a type)", "{resources: {other: {properties: {}}}}", "program.resources.other.type: Required value", "", ""},
		{"resources (unknown field)", "{resources: {first: {propertys: {}}}}", "", pulumiv1.RetryingAfterFailureReason, "invalid key 'propertys'"},
		{"resources (unknown type)", "{resources: {first: {type: 'test:index:Nothing'}}}", "", pulumiv1.RetryingAfterFailureReason, "error resolving type of resource first"},
		{"get (beside properties)", "{resources: {first: {get: {id: x}}}}", "", pulumiv1.RetryingAfterFailureReason, "properties and get are mutually exclusive"},
		{"get (without an id)", "{resources: {looked: {get: {id: ''}}}}", "", pulumiv1.RetryingAfterFailureReason, "Expected an ID"},
		{"program (runtime)", "{runtime: go}", "", pulumiv1.SourceNotReadyReason, "program.runtime: cannot be set: the runtime of a Program is yaml"},
		{"program (two megabytes)", "{variables: {greeting: " + huge + "}}", "too large", "", ""},
	} {
		t.Run(test.field, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, namespaceFor("misuse-program", test.field))
			objects := s.manifest("manifests/program", "")
			s.mergeProgram(objects, "{program: "+test.patch+"}")
			err := s.applyAll(objects)
			if test.refused != "" {
				s.Expect(err).To(MatchError(ContainSubstring(test.refused)))
				return
			}
			s.Succeed(err)
			s.AwaitStack("program", notReady(test.reason, test.says))
			if test.reason == pulumiv1.SourceNotReadyReason {
				program := s.program("program")
				s.Expect(conditions.GetReason(program, meta.StalledCondition)).To(Equal(pulumiv1.ProgramInvalidReason))
				s.Expect(conditions.GetMessage(program, meta.ReadyCondition)).To(ContainSubstring(test.says))
				s.Expect(program.Status.Artifact).To(BeNil())
			}
			s.replace("manifests/program")
			s.awaitReady("program")
		})
	}
}

func TestMisusedProgramRefIsExplainedAndRecovers(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testMisuses(t, []misuse{
		{field: "programRef (missing)", manifest: "program", patch: "{spec: {programRef: {name: nobody}}}", reason: pulumiv1.SourceNotFoundReason, says: "nobody"},
		{field: "programRef.name (absent)", manifest: "program", patch: "{spec: {programRef: {name: null}}}", refused: "spec.programRef.name: Required value"},
		{field: "programRef.name (another namespace)", manifest: "program", patch: "{spec: {programRef: {name: kube-system/program}}}", reason: pulumiv1.SourceNotFoundReason, says: "kube-system/program"},
	})
}

// awaitReason waits, as scripts do with kubectl wait, for the reason of a condition of an object such as workspace/NAME.
func (s *fixture) awaitReason(object, condition, reason string) {
	s.Helper()
	for _, until := range []string{"create", `jsonpath={.status.conditions[?(@.type=="` + condition + `")].reason}=` + reason} {
		_, err := system.ControlPlane.Kubectl(s.Context(), "wait", object, "-n", s.Name, "--for="+until, "--timeout="+s.Patience.String())
		s.Succeed(err)
	}
}

// TestWorkspaceShowsWhatKeptItsOperationFromRunning provokes problems that the operator reports when it makes a Workspace ready.
func TestWorkspaceShowsWhatKeptItsOperationFromRunning(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	for _, test := range []struct{ reason, patch string }{
		{"Unauthenticated", "{spec: {backend: 'carrier-pigeon://loft'}}"},
		{"InstallationFailed", "{spec: {fluxSource: {dir: uninstallable}}}"},
		{"InitializationFailed", "{spec: {useLocalStackOnly: true}}"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, namespaceFor("workspace", test.reason))
			s.applyPatched("plain", test.patch)
			s.awaitReason("workspace/plain", "Ready", test.reason)
			s.awaitReason("workspace/plain", "Stalled", test.reason)
			stack := s.AwaitStack("plain", notReady(pulumiv1.RetryingAfterFailureReason, ""))
			s.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
			// The next operation runs nevertheless, and heals the Workspace.
			s.replace("manifests/plain")
			s.awaitReady("plain")
			s.awaitReason("workspace/plain", "Ready", "Succeeded")
		})
	}
}

// TestUpdateByHandThatDescribesNoOperationIsAborted creates Updates that the API server also admits with the operator's definitions.
func TestUpdateByHandThatDescribesNoOperationIsAborted(t *testing.T) {
	t.Parallel()
	s := newFixture(t, "updates-by-hand")
	s.apply("manifests/plain")
	s.awaitReady("plain")
	for name, spec := range map[string]string{
		"without-type":  "{workspaceName: plain, stackName: dev}",
		"other-type":    "{workspaceName: plain, stackName: dev, type: carrot}",
		"without-stack": "{workspaceName: plain, type: preview}",
	} {
		s.Expect(s.applyAll(s.parse("{apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {name: " + name + "}, spec: " + spec + "}"))).To(Succeed())
		s.awaitReason("update/"+name, "Failed", "Aborted")
		s.awaitReason("update/"+name, "Complete", "Failed")
		s.awaitReason("update/"+name, "Progressing", "Failed")
	}
	s.Expect(s.applyAll(s.parse("{apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {name: nowhere}}"))).To(Succeed())
	s.awaitReason("update/nowhere", "Progressing", "WorkspaceNotFound")
	s.staysSo("plain", isReady)
}
