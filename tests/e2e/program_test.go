package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/provider/install"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// programStack is a Stack that runs the Program of its name, in a namespace of its name.
func programStack(name string) *pulumiv1.Stack {
	stack := artifactStack(name)
	stack.Spec.FluxSource = nil
	stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: name}
	return stack
}

// inlineProgram is a Program as somebody writes it, unknown fields included.
func inlineProgram(g *WithT, namespace, name, body string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(body), &content)).To(Succeed())
	object := &unstructured.Unstructured{Object: map[string]any{"program": content}}
	object.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.ProgramKind))
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// editProgram replaces the content of the Program of the name in the namespace of the name.
func editProgram(t *testing.T, g *WithT, name, body string) {
	t.Helper()
	object := inlineProgram(g, name, name, body)
	applied := client.ApplyConfigurationFromUnstructured(object)
	g.Expect(system.Client.Apply(t.Context(), applied, client.FieldOwner("test"), client.ForceOwnership)).To(Succeed())
}

// deployedProgram starts a Stack with the Program, changed as told, and waits until it is Ready.
func deployedProgram(t *testing.T, g *WithT, name, body string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	t.Helper()
	stack := programStack(name)
	for _, change := range changes {
		change(stack)
	}
	startInNamespace(t, g, name, stack)
	editProgram(t, g, name, body)
	return await(t.Context(), g, name, appliedProgram(t, g, name))
}

// awaitProgram returns the Program once the controller has looked at it as it is now.
func awaitProgram(t *testing.T, g *WithT, name string) *pulumiv1.Program {
	t.Helper()
	found := &pulumiv1.Program{}
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), keyOf(name), found)).To(Succeed())
		g.Expect(found.Status.ObservedGeneration).To(Equal(found.Generation))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	g.Expect(statuscheck.Lint(t.Context(), found)).To(Succeed())
	return found
}

// appliedProgram is a Stack that has been deployed as its Program is now.
func appliedProgram(t *testing.T, g *WithT, name string) func(*pulumiv1.Stack) bool {
	t.Helper()
	artifact := awaitProgram(t, g, name).Status.Artifact
	g.Expect(artifact).NotTo(BeNil())
	return func(stack *pulumiv1.Stack) bool {
		return ready(artifact.Digest)(stack) && stack.Status.LastAppliedRevision == artifact.Revision
	}
}

func output(stack *pulumiv1.Stack, name string) string { return string(stack.Status.Outputs[name].Raw) }

func TestStackRunsItsProgramAndFollowsItsEdits(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "inline"
	stack := deployedProgram(t, g, name, `{configuration: {size: {type: Integer, default: 2}}, outputs: {size: "${size}", day: "2024-01-01", exact: 12345678}}`)
	g.Expect(output(stack, "size")).To(Equal("2"))
	g.Expect(output(stack, "day")).To(Equal(`"2024-01-01"`))
	g.Expect(output(stack, "exact")).To(Equal("12345678"))
	g.Expect(stack.Status.LastAppliedRevision).To(Equal("1"))

	begin := time.Now()
	editProgram(t, g, name, `{outputs: {size: 3}}`)
	stack = await(t.Context(), g, name, appliedProgram(t, g, name))
	t.Logf("an edit was deployed after %s", time.Since(begin).Round(time.Millisecond))
	g.Expect(output(stack, "size")).To(Equal("3"))
	g.Expect(stack.Status.LastAppliedRevision).To(Equal("2"))
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(HavePrefix("sha256:"))
	for _, update := range updates(t.Context(), g, name) {
		g.Expect(update.Spec.Source.Program).To(Equal(&autov1alpha1.ProgramSource{Name: name}))
	}
}

func TestProgramThatIsWrittenAfterItsStackIsRun(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "inline-later"
	startInNamespace(t, g, name, programStack(name))
	stack := await(t.Context(), g, name, notReady(pulumiv1.SourceNotFoundReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("Program inline-later/inline-later does not exist"))
	editProgram(t, g, name, "{outputs: {x: 1}}")
	await(t.Context(), g, name, appliedProgram(t, g, name))
}

func TestInvalidProgramIsToldByProgramAndStackAndHeals(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "inline-broken"
	deployedProgram(t, g, name, "{outputs: {x: 1}}")

	// A client that does not ask for strict validation: nobody refuses it.
	wrong := inlineProgram(g, name, name, `{resources: {a: {type: t, optoins: {protect: true}}}, outputs: {x: `+secretCanary+`}}`)
	current := awaitProgram(t, g, name)
	wrong.SetResourceVersion(current.ResourceVersion)
	g.Expect(system.Client.Update(t.Context(), wrong, client.FieldValidation("Ignore"))).To(Succeed())
	const says = `program.resources.a.optoins: unknown field, did you mean "options"?`
	found := awaitProgram(t, g, name)
	g.Expect(conditions.GetReason(found, meta.StalledCondition)).To(Equal(pulumiv1.ProgramInvalidReason))
	g.Expect(conditions.GetMessage(found, meta.ReadyCondition)).To(Equal(says))
	stack := await(t.Context(), g, name, notReady(pulumiv1.SourceNotReadyReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring(says))
	g.Expect(output(stack, "x")).To(Equal("1"), "what is deployed stays")
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1))

	mended := inlineProgram(g, name, name, `{outputs: {x: 2}}`)
	mended.SetResourceVersion(found.ResourceVersion)
	g.Expect(system.Client.Update(t.Context(), mended)).To(Succeed())
	stack = await(t.Context(), g, name, appliedProgram(t, g, name))
	g.Expect(output(stack, "x")).To(Equal("2"))
}

func TestWhatOnlyPulumiCanFindWrongIsToldByTheStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "inline-undefined"
	startInNamespace(t, g, name, programStack(name))
	editProgram(t, g, name, "{outputs: {x: '${nobody}'}}")
	stack := await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("nobody"))
	editProgram(t, g, name, "{outputs: {x: 1}}")
	await(t.Context(), g, name, appliedProgram(t, g, name))
}

func TestStackIsDestroyedThoughItsProgramIsGone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "inline-gone"
	stack := deployedProgram(t, g, name, "{outputs: {x: 1}}", func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true })
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
	g.Expect(system.Client.Delete(t.Context(), awaitProgram(t, g, name))).To(Succeed())
	waiting := await(t.Context(), g, name, notReady(pulumiv1.SourceNotFoundReason))
	g.Expect(output(waiting, "x")).To(Equal("1"), "what is deployed stays")
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestProgramOfTheSameNameElsewhereIsNotUsed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name, other = "inline-own", "inline-other"
	deployedProgram(t, g, other, "{outputs: {x: other}}")
	g.Expect(system.Client.Create(t.Context(), inlineProgram(g, other, name, "{outputs: {x: other}}"))).To(Succeed())
	startInNamespace(t, g, name, programStack(name))
	stack := await(t.Context(), g, name, notReady(pulumiv1.SourceNotFoundReason))
	g.Expect(stack.Status.LastUpdate).To(BeNil())
	editProgram(t, g, name, "{outputs: {x: own}}")
	g.Expect(output(await(t.Context(), g, name, appliedProgram(t, g, name)), "x")).To(Equal(`"own"`))
}

// stateResource is a resource in pulumi's state, with the options that it was registered with.
type stateResource struct {
	URN            string
	Protect        bool
	RetainOnDelete bool
	DeletedWith    string
	CustomTimeouts struct{ Create float64 }
}

// stateOf returns the resource of the key in a Program from the state of the stack "dev" of the project; nil when it has none.
func stateOf(g *WithT, project, key string) *stateResource {
	content, err := os.ReadFile(filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "stacks", project, "dev.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var state struct {
		Checkpoint struct {
			Latest struct{ Resources []stateResource }
		}
	}
	g.Expect(json.Unmarshal(content, &state)).To(Succeed())
	for _, resource := range state.Checkpoint.Latest.Resources {
		if strings.HasSuffix(resource.URN, "::"+key) {
			return &resource
		}
	}
	return nil
}

func TestResourceOptionsOfAProgramReachPulumi(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "inline-options"
	deployedProgram(t, g, name, "{outputs: {x: 1}}")
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	agentDir := filepath.Dir(strings.TrimPrefix(workspace.Status.Address, "unix:"))
	g.Expect(install.Install(t.Context(), filepath.Join(agentDir, "state", "home", ".pulumi"))).To(Succeed())
	kept, removed := filepath.Join(t.TempDir(), "kept"), filepath.Join(t.TempDir(), "removed")

	editProgram(t, g, name, `
configuration:
  guard: {type: Boolean, default: false}
resources:
  first:
    type: test:index:Sleep
    properties: {seconds: 0, file: "`+removed+`", content: a}
    options: {version: 0.1.0, protect: "${guard}", customTimeouts: {create: 90s}}
  second:
    type: test:index:Sleep
    name: renamed
    properties: {seconds: 0, file: "`+kept+`", content: b}
    options: {version: 0.1.0, retainOnDelete: true, dependsOn: ["${first}"]}
  third:
    type: test:index:Sleep
    properties: {seconds: 0}
    options: {version: 0.1.0, deletedWith: "${first}", hideDiffs: [seconds], replaceOnChanges: [seconds], replaceWith: ["${first}"]}
`)
	await(t.Context(), g, name, appliedProgram(t, g, name))
	first, second, third := stateOf(g, name, "first"), stateOf(g, name, "renamed"), stateOf(g, name, "third")
	g.Expect(first.CustomTimeouts.Create).To(BeEquivalentTo(90))
	g.Expect(first.Protect).To(BeFalse())
	g.Expect(second.RetainOnDelete).To(BeTrue())
	g.Expect(third.DeletedWith).To(Equal(first.URN))
	g.Expect(kept).To(BeAnExistingFile())

	editProgram(t, g, name, "{outputs: {x: 2}}")
	await(t.Context(), g, name, appliedProgram(t, g, name))
	g.Expect(stateOf(g, name, "renamed")).To(BeNil())
	g.Expect(kept).To(BeAnExistingFile(), "retained when it left the program")
	g.Expect(removed).NotTo(BeAnExistingFile())
}

func TestEditsOfAProgramInARowEndWithTheLastOne(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name, edits = "inline-edits", 6
	deployedProgram(t, g, name, "{outputs: {x: 0}}")
	for i := 1; i <= edits; i++ {
		editProgram(t, g, name, fmt.Sprintf("{outputs: {x: %d}}", i))
		time.Sleep(200 * time.Millisecond) // so that they meet the update before in all its stages
	}
	stack := await(t.Context(), g, name, appliedProgram(t, g, name))
	g.Expect(output(stack, "x")).To(Equal("6"))
	g.Expect(stack.Status.LastAppliedRevision).To(Equal("7"))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

func TestStackWithAProgramOfTheFormerControllerIsTakenOver(t *testing.T) {
	g := NewWithT(t)
	const name = "former-inline"
	deployedProgram(t, g, name, "{outputs: {x: 1}}")
	stopController(t, g)
	program := awaitProgram(t, g, name)
	digest := program.Status.Artifact.Digest
	leftByTheFormerController(t, g, name, "1")
	before := program.DeepCopy()
	program.Status.Conditions = nil
	program.Status.Artifact.URL = "http://operator/programs/" + name + "/" + name + "/1"
	program.Status.Artifact.Digest = "sha256:" + strings.Repeat("0", 64)
	g.Expect(system.Client.Status().Patch(t.Context(), program, client.MergeFrom(before))).To(Succeed())
	g.Expect(system.StartController(t.Context())).To(Succeed())

	await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready(digest)(s) && len(s.Status.History) == 1 })
	g.Expect(awaitProgram(t, g, name).Status.Artifact.URL).To(Equal("program://former-inline/former-inline/1"))
	deployedProgram(t, g, name+"-later", "{outputs: {x: 1}}") // what comes later is deployed later
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2), "nothing runs because the controller changed")
	editProgram(t, g, name, "{outputs: {x: 2}}")
	await(t.Context(), g, name, appliedProgram(t, g, name))
}
