package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestStackSaysWhatIsWrongWithItsProgram(t *testing.T) {
	suite.Long(t, "further mistakes of programs")
	t.Parallel()
	trivial := scene.Returning("trivial", 1)
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
		"failing": {files: scene.Program("failing", "variables:", "  v:", "    fn::readFile: /no/such/file", "outputs:", "  x: ${v}"),
			says: "/no/such/file"},
		"no-stack": {scene.Returning("no-stack", 1), func(s *pulumiv1.Stack) { s.Spec.UseLocalStackOnly = true }, "dev"},
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
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.EnvRefs["LATER"] = stage.SecretRef("later", "key") })
	stack := p.Await(notReady(pulumiv1.SecretNotFoundReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("later"))
	p.Expect(stack.Status.LastUpdate).To(BeNil())

	// A new revision takes the place of the one that waits.
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
	p.Expect(scene.Output(stack, "hidden")).To(Equal(`"[secret]"`))
	p.Expect(stack.Status.Outputs).To(HaveKey("open"))

	secret := p.outputs(stack)
	p.Expect(string(secret.Data["hidden"])).To(Equal(`"` + secretCanary + `"`))
	p.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["hidden"]`))
}
