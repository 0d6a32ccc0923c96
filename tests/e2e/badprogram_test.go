package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/provider/install"
	"github.com/stack-controller/stack-controller/tests/stage"
)

func TestStackSaysWhatIsWrongWithItsProgram(t *testing.T) {
	for _, test := range []struct {
		name   string
		files  gitserver.Files
		change func(*pulumiv1.Stack)
		says   string
	}{
		{name: "no-project", files: gitserver.Files{"README.md": "nothing"}, says: "Pulumi.yaml"},
		{name: "broken-yaml", files: gitserver.Files{"Pulumi.yaml": "name: [\n"}, says: "Pulumi.yaml"},
		{name: "dir-outside", files: yamlProgram("dir-outside"), change: func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "../elsewhere" }, says: "../elsewhere"},
		{name: "dir-missing", files: yamlProgram("dir-missing"), change: func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "nowhere" }, says: "nowhere"},
		{name: "unknown-runtime", files: gitserver.Files{"Pulumi.yaml": "name: x\nruntime: cobol\n"}, says: "cobol"},
		{name: "no-passphrase", files: yamlProgram("no-passphrase", "outputs:", "  x: 1"), change: func(s *pulumiv1.Stack) { s.Spec.EnvRefs = nil }, says: "passphrase"},
		{name: "failing", files: yamlProgram("failing", "variables:", "  v:", "    fn::readFile: /no/such/file", "outputs:", "  x: ${v}"), says: "/no/such/file"},
		{name: "no-stack", files: yamlProgram("no-stack", "outputs:", "  x: 1"), change: func(s *pulumiv1.Stack) { s.Spec.UseLocalStackOnly = true }, says: "dev"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			name := "program-" + test.name
			changes := []func(*pulumiv1.Stack){}
			if test.change != nil {
				changes = append(changes, test.change)
			}
			g.Expect(start(t.Context(), name, artifacts.put("v1", packed(test.files)), changes...)).To(Succeed())
			stack := await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
			g.Expect(readyMessage(stack)).To(And(ContainSubstring(test.says), ContainSubstring("next attempt in")))
			g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
			g.Expect(stack.Status.LastUpdate.Failures).To(BeEquivalentTo(1))
			g.Expect(len(readyMessage(stack))).To(BeNumerically("<", 5000))
		})
	}
}

func TestNewCommitMendsAFailedProgramAtOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "mended"
	g.Expect(start(t.Context(), name, artifacts.put("v1", packed(gitserver.Files{"Pulumi.yaml": "name: [\n"})))).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
	good := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(publish(t.Context(), name, good)).To(Succeed())
	stack := await(t.Context(), g, name, ready(good.Digest))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

func TestMissingSecretKeyIsWaitedForAndIsNoFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "secret-key"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.EnvRefs["LATER"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "later", Key: "key"}}
	})).To(Succeed())
	stack := await(t.Context(), g, name, notReady(pulumiv1.SecretNotFoundReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("later"))
	g.Expect(stack.Status.LastUpdate).To(BeNil())

	// A new revision takes the place of the one that waits.
	artifact = artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	stack = await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
		return notReady(pulumiv1.SecretNotFoundReason)(s) && s.Status.CurrentUpdate != nil && s.Status.CurrentUpdate.Commit == artifact.Digest
	})
	g.Expect(stack.Status.LastUpdate).To(BeNil())
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1))

	g.Expect(system.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "later"}, StringData: map[string]string{"key": secretCanary},
	})).To(Succeed())
	await(t.Context(), g, name, ready(artifact.Digest))
}

func TestSecretsThatAProgramPrintsStaySecret(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "printing"
	_, _ = deployed(t, g, name, func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": {
			Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: stage.PassphraseSecret, Key: "canary"},
		}}
	})
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	agentDir := filepath.Dir(strings.TrimPrefix(workspace.Status.Address, "unix:"))
	g.Expect(install.Install(t.Context(), filepath.Join(agentDir, "state", "home", ".pulumi"))).To(Succeed())

	leaking := yamlProgram(name, "config:", "  password: {type: string, secret: true}", "resources:", "  chatty:",
		"    type: test:index:Sleep", "    properties: {seconds: 0, echo: \"${password}\", failMessage: \"refused: ${password}\"}", "    options: {version: 0.1.0}")
	g.Expect(publish(t.Context(), name, artifacts.put("v2", packed(leaking)))).To(Succeed())
	stack := await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("refused: [secret]"))
}

func TestSecretOutputsAreInTheirSecretAndNowhereElse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "outputs"
	program := yamlProgram(name, "config:", "  password: {type: string, secret: true}", "outputs:", "  open: {n: 12345678901234567890}", "  hidden: ${password}")
	artifact := artifacts.put("v1", packed(program))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": {
			Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: stage.PassphraseSecret, Key: "canary"},
		}}
	})).To(Succeed())
	stack := await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(string(stack.Status.Outputs["hidden"].Raw)).To(Equal(`"[secret]"`))
	g.Expect(stack.Status.Outputs).To(HaveKey("open"))

	secret := &corev1.Secret{}
	g.Expect(system.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: stack.Status.LastUpdate.Name + "-stack-outputs"}, secret)).To(Succeed())
	g.Expect(string(secret.Data["hidden"])).To(Equal(`"` + secretCanary + `"`))
	g.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["hidden"]`))
}
