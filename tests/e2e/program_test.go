package e2e_test

import (
	"fmt"
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
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// programStack returns a Stack that runs the Program with the same name.
func (p *fixture) programStack(changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	stack := p.newStack()
	stack.Spec.FluxSource = nil
	stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: p.Name}
	for _, change := range changes {
		change(stack)
	}
	return stack
}

// program returns a Program as a user would write it, including unknown fields.
func (p *fixture) program(name, body string) *unstructured.Unstructured {
	p.Helper()
	content := map[string]any{}
	p.Expect(yaml.Unmarshal([]byte(body), &content)).To(Succeed())
	object := &unstructured.Unstructured{Object: map[string]any{"program": content}}
	object.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.ProgramKind))
	object.SetNamespace(p.Name)
	object.SetName(name)
	return object
}

// editProgram replaces the content of the Program.
func (p *fixture) editProgram(body string) {
	p.Helper()
	applied := client.ApplyConfigurationFromUnstructured(p.program(p.Name, body))
	p.Expect(system.Client.Apply(p.Context(), applied, client.FieldOwner("test"), client.ForceOwnership)).To(Succeed())
}

// deployedProgram starts a Stack with the Program and with the changes, and waits until it is Ready.
func (p *fixture) deployedProgram(body string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	p.Helper()
	p.enter(p.programStack(changes...))
	p.editProgram(body)
	return p.awaitApplied()
}

// awaitProgram waits until the controller has observed the current generation of the Program, and returns the Program.
func (p *fixture) awaitProgram() *pulumiv1.Program {
	p.Helper()
	found := &pulumiv1.Program{}
	p.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(p.Context(), p.Key(p.Name), found)).To(Succeed())
		g.Expect(found.Status.ObservedGeneration).To(Equal(found.Generation))
	}).Should(Succeed())
	p.Expect(statuscheck.Lint(p.Context(), found)).To(Succeed())
	return found
}

// awaitApplied waits until the current generation of the Program is deployed.
func (p *fixture) awaitApplied() *pulumiv1.Stack {
	p.Helper()
	artifact := p.awaitProgram().Status.Artifact
	p.Expect(artifact).NotTo(BeNil())
	return p.Await(func(stack *pulumiv1.Stack) bool {
		return ready(artifact.Digest)(stack) && stack.Status.LastAppliedRevision == artifact.Revision
	})
}

func TestStackRunsItsProgramAndFollowsItsEdits(t *testing.T) {
	p := begin(t, "inline")
	stack := p.deployedProgram(`{configuration: {size: {type: Integer, default: 2}}, outputs: {size: "${size}", day: "2024-01-01", exact: 12345678}}`)
	p.Expect(systemtest.Output(stack, "size")).To(Equal("2"))
	p.Expect(systemtest.Output(stack, "day")).To(Equal(`"2024-01-01"`))
	p.Expect(systemtest.Output(stack, "exact")).To(Equal("12345678"))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("1"))

	edited := time.Now()
	p.editProgram(`{outputs: {size: 3}}`)
	stack = p.awaitApplied()
	p.Logf("an edit was deployed after %s", time.Since(edited).Round(time.Millisecond))
	p.Expect(systemtest.Output(stack, "size")).To(Equal("3"))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("2"))
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(HavePrefix("sha256:"))
	for _, update := range p.Updates() {
		p.Expect(update.Spec.Source.Program).To(Equal(&autov1alpha1.ProgramSource{Name: p.Name}))
	}
}

func TestInvalidProgramIsReportedByProgramAndStackAndRecovers(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p := begin(t, "inline-broken")
	p.deployedProgram("{outputs: {x: 1}}")

	// The client does not ask for strict validation, so the API server accepts the field.
	wrong := p.program(p.Name, `{runtime: go, outputs: {x: `+secretCanary+`}}`)
	current := p.awaitProgram()
	wrong.SetResourceVersion(current.ResourceVersion)
	p.Expect(system.Client.Update(p.Context(), wrong, client.FieldValidation("Ignore"))).To(Succeed())
	const says = "program.runtime: cannot be set: the runtime of a Program is yaml"
	found := p.awaitProgram()
	p.Expect(conditions.GetReason(found, meta.StalledCondition)).To(Equal(pulumiv1.ProgramInvalidReason))
	p.Expect(conditions.GetMessage(found, meta.ReadyCondition)).To(Equal(says))
	stack := p.Await(notReady(pulumiv1.SourceNotReadyReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring(says))
	p.Expect(systemtest.Output(stack, "x")).To(Equal("1"), "what is deployed stays")
	p.Expect(p.Updates()).To(HaveLen(1))

	mended := p.program(p.Name, `{outputs: {x: 2}}`)
	mended.SetResourceVersion(found.ResourceVersion)
	p.Expect(system.Client.Update(p.Context(), mended)).To(Succeed())
	stack = p.awaitApplied()
	p.Expect(systemtest.Output(stack, "x")).To(Equal("2"))
}

func TestWhatOnlyPulumiCanFindWrongIsReportedByTheStack(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p := begin(t, "inline-undefined")
	p.enter(p.programStack())
	p.editProgram("{outputs: {x: '${nobody}'}}")
	stack := p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("nobody"))
	p.editProgram("{outputs: {x: 1}}")
	p.awaitApplied()
}

func TestStackIsDestroyedThoughItsProgramIsGone(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p := begin(t, "inline-gone")
	p.deployedProgram("{outputs: {x: 1}}", destroyed)
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	p.Expect(system.Client.Delete(p.Context(), p.awaitProgram())).To(Succeed())
	waiting := p.Await(notReady(pulumiv1.SourceNotFoundReason))
	p.Expect(systemtest.Output(waiting, "x")).To(Equal("1"), "what is deployed stays")
	p.Delete()
	p.awaitDestroyed()
}

func TestProgramOfTheSameNameElsewhereIsNotUsed(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p, other := begin(t, "inline-own"), alone(t, "inline-other")
	other.deployedProgram("{outputs: {x: other}}")
	other.Create(other.program(p.Name, "{outputs: {x: other}}"))
	p.enter(p.programStack())
	stack := p.Await(notReady(pulumiv1.SourceNotFoundReason))
	p.Expect(stack.Status.LastUpdate).To(BeNil())
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("Program inline-own/inline-own does not exist"))
	p.editProgram("{outputs: {x: own}}")
	p.Expect(systemtest.Output(p.awaitApplied(), "x")).To(Equal(`"own"`))
}

func TestResourceOptionsOfAProgramReachPulumi(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p := begin(t, "inline-options")
	p.deployedProgram("{outputs: {x: 1}}")
	p.InstallProvider(p.Name)
	kept, removed := filepath.Join(p.TempDir(), "kept"), filepath.Join(p.TempDir(), "removed")

	p.editProgram(`
configuration:
  guard: {type: Boolean, default: false}
resources:
  first:
    type: test:index:Sleep
    properties: {seconds: 0, file: "` + removed + `", content: a}
    options: {version: 0.1.0, protect: "${guard}", customTimeouts: {create: 90s}}
  second:
    type: test:index:Sleep
    name: renamed
    properties: {seconds: 0, file: "` + kept + `", content: b}
    options: {version: 0.1.0, retainOnDelete: true, dependsOn: ["${first}"]}
  third:
    type: test:index:Sleep
    properties: {seconds: 0}
    options: {version: 0.1.0, deletedWith: "${first}", hideDiffs: [seconds], replaceOnChanges: [seconds], replaceWith: ["${first}"]}
`)
	p.awaitApplied()
	first, second, third := p.stateOf("first"), p.stateOf("renamed"), p.stateOf("third")
	p.Expect(first.CustomTimeouts.Create).To(BeEquivalentTo(90))
	p.Expect(first.Protect).To(BeFalse())
	p.Expect(second.RetainOnDelete).To(BeTrue())
	p.Expect(third.DeletedWith).To(Equal(first.URN))
	p.Expect(kept).To(BeAnExistingFile())

	p.editProgram("{outputs: {x: 2}}")
	p.awaitApplied()
	p.Expect(p.stateOf("renamed")).To(BeNil())
	p.Expect(kept).To(BeAnExistingFile(), "retained when it left the program")
	p.Expect(removed).NotTo(BeAnExistingFile())
}

func TestEditsOfAProgramInARowEndWithTheLastOne(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p := begin(t, "inline-edits")
	const edits = 6
	p.deployedProgram("{outputs: {x: 0}}")
	for i := 1; i <= edits; i++ {
		p.editProgram(fmt.Sprintf("{outputs: {x: %d}}", i))
		time.Sleep(200 * time.Millisecond) // so that the edits meet every phase of the update before
	}
	stack := p.awaitApplied()
	p.Expect(systemtest.Output(stack, "x")).To(Equal("6"))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("7"))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

func TestStackWithAProgramOfTheFormerControllerIsTakenOver(t *testing.T) {
	suite.Long(t, "further states of a Program")
	p := alone(t, "former-inline")
	p.deployedProgram("{outputs: {x: 1}}")
	p.stopController()
	program := p.awaitProgram()
	digest := program.Status.Artifact.Digest
	p.leftByTheFormerController("1")
	before := program.DeepCopy()
	program.Status.Conditions = nil
	program.Status.Artifact.URL = "http://operator/programs/" + p.Name + "/" + p.Name + "/1"
	program.Status.Artifact.Digest = "sha256:" + strings.Repeat("0", 64)
	p.Expect(system.Client.Status().Patch(p.Context(), program, client.MergeFrom(before))).To(Succeed())
	p.startController()

	p.Await(func(s *pulumiv1.Stack) bool { return ready(digest)(s) && len(s.Status.History) == 1 })
	p.Expect(p.awaitProgram().Status.Artifact.URL).To(Equal("program://former-inline/former-inline/1"))
	p.beside(p.Name + "-later").deployedProgram("{outputs: {x: 1}}") // deployed after the reconcile of the one before
	p.Expect(p.Updates()).To(HaveLen(2), "nothing runs because the controller changed")
	p.editProgram("{outputs: {x: 2}}")
	p.awaitApplied()
}

func TestStackSaysWhatIsWrongWithItsProgram(t *testing.T) {
	suite.Long(t, "further mistakes of programs")
	t.Parallel()
	trivial := systemtest.Returning("trivial", 1)
	for name, test := range map[string]struct {
		files  gitserver.Files
		change func(*pulumiv1.Stack)
		says   string
	}{
		"no-project":      {files: gitserver.Files{"README.md": "nothing"}, says: "Pulumi.yaml"},
		"broken-yaml":     {files: gitserver.Files{"Pulumi.yaml": "name: [\n"}, says: "Pulumi.yaml"},
		"dir-outside":     {trivial, func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "../elsewhere" }, "../elsewhere"},
		"dir-missing":     {trivial, func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "nowhere" }, "nowhere"},
		"unknown-runtime": {files: gitserver.Files{"Pulumi.yaml": "name: x\nruntime: cobol\n"}, says: "cobol"},
		"no-passphrase":   {trivial, func(s *pulumiv1.Stack) { s.Spec.EnvRefs = nil }, "passphrase"},
		"failing": {files: systemtest.Program("failing", "variables:", "  v:", "    fn::readFile: /no/such/file", "outputs:", "  x: ${v}"),
			says: "/no/such/file"},
		"no-stack": {systemtest.Returning("no-stack", 1), func(s *pulumiv1.Stack) { s.Spec.UseLocalStackOnly = true }, "dev"},
	} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, "program-"+name)
			p.start(p.put(test.files), func(s *pulumiv1.Stack) {
				if test.change != nil {
					test.change(s)
				}
			})
			stack := p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
			p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(test.says), ContainSubstring("next attempt in")))
			p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
			p.Expect(stack.Status.LastUpdate.Failures).To(BeEquivalentTo(1))
			p.Expect(len(statuscheck.Message(stack))).To(BeNumerically("<", 5000))
		})
	}
}

func TestNewCommitMendsAFailedProgramAtOnce(t *testing.T) {
	p := begin(t, "mended")
	p.start(p.put(gitserver.Files{"Pulumi.yaml": "name: [\n"}))
	p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	good := p.publish(p.returning(1))
	stack := p.Await(ready(good.Digest))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

func TestMissingSecretKeyIsWaitedForAndIsNoFailure(t *testing.T) {
	suite.Long(t, "further mistakes of programs")
	p := begin(t, "secret-key")
	artifact := p.put(p.returning(1))
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.EnvRefs["LATER"] = localsystem.SecretRef("later", "key") })
	stack := p.Await(notReady(pulumiv1.SecretNotFoundReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("later"))
	p.Expect(stack.Status.LastUpdate).To(BeNil())

	// A new revision replaces the waiting one.
	artifact = p.publish(p.returning(2))
	stack = p.Await(func(s *pulumiv1.Stack) bool {
		return notReady(pulumiv1.SecretNotFoundReason)(s) && s.Status.CurrentUpdate != nil && s.Status.CurrentUpdate.Commit == artifact.Digest
	})
	p.Expect(stack.Status.LastUpdate).To(BeNil())
	p.Expect(p.Updates()).To(HaveLen(1))

	p.Create(p.Secret("later", map[string]string{"key": secretCanary}))
	p.Await(ready(artifact.Digest))
	p.Eventually(p.events).WithArguments("StackCreated").ShouldNot(BeEmpty())
	p.Expect(p.events("StackUpdateFailure")).To(BeEmpty(), "the one that made room failed nobody")
}

func TestSecretsThatAProgramPrintsStaySecret(t *testing.T) {
	p := begin(t, "printing")
	p.deployed(usesPassword)
	p.InstallProvider(p.Name)
	leaking := p.yaml("config:", "  password: {type: string, secret: true}", "resources:", "  chatty:",
		"    type: test:index:Sleep", "    properties: {seconds: 0, echo: \"${password}\", failMessage: \"refused: ${password}\"}", "    options: {version: 0.1.0}")
	p.publish(leaking)
	stack := p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("refused: [secret]"))
}

func TestSecretOutputsAreInTheirSecretAndNowhereElse(t *testing.T) {
	p := begin(t, "outputs")
	program := p.yaml("config:", "  password: {type: string, secret: true}", "outputs:", "  open: {n: 12345678901234567890}", "  hidden: ${password}")
	artifact := p.put(program)
	p.start(artifact, usesPassword)
	stack := p.Await(ready(artifact.Digest))
	p.Expect(systemtest.Output(stack, "hidden")).To(Equal(`"[secret]"`))
	p.Expect(stack.Status.Outputs).To(HaveKey("open"))

	secret := p.outputs(stack)
	p.Expect(string(secret.Data["hidden"])).To(Equal(`"` + secretCanary + `"`))
	p.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["hidden"]`))
}
