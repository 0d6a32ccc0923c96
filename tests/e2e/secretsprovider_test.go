package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/vault"
)

// checkpointOf returns the state of the stack "dev" of the project.
func checkpointOf(g *WithT, project string) string {
	content, err := os.ReadFile(filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "stacks", project, "dev.json"))
	g.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func TestSecretsProviderOfAStackFollowsItsSpec(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "reencrypted"
	server, err := vault.Start(t.Context(), system.ControlPlane)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(server.Stop()).To(Succeed()) }()
	token, err := server.CreateKey(t.Context(), "stack")
	g.Expect(err).NotTo(HaveOccurred())
	program := yamlProgram(name, "config:", "  password: {type: string, secret: true}", "outputs:", "  hidden: ${password}")
	artifact := artifacts.put("v1", packed(program))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": secretRef()}
		for variable, value := range map[string]string{"VAULT_ADDR": server.Address, "VAULT_TOKEN": token} {
			s.Spec.EnvRefs[variable] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
		}
	})).To(Succeed())
	last := await(t.Context(), g, name, ready(artifact.Digest)).Status.LastUpdate.Name
	g.Expect(checkpointOf(g, name)).To(ContainSubstring(`"secrets_providers":{"type":"passphrase"`))
	for _, step := range []struct{ provider, state string }{
		{"hashivault://stack", `"secrets_providers":{"type":"cloud","state":{"url":"hashivault://stack"`},
		{"passphrase", `"secrets_providers":{"type":"passphrase"`},
	} {
		change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.SecretsProvider = step.provider })
		stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != last })
		last = stack.Status.LastUpdate.Name
		g.Expect(checkpointOf(g, name)).To(ContainSubstring(step.state))
		g.Expect(string(outputsSecret(t, g, stack).Data["hidden"])).To(Equal(`"` + secretCanary + `"`))
	}
	changes := 0
	for _, call := range pulumi.callsFor(t.Context(), g, name) {
		if strings.Contains(call, "change-secrets-provider") {
			changes++
		}
	}
	g.Expect(changes).To(Equal(2))
}

func TestChangedPassphraseIsReportedAndHealsWhenItIsRestored(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "repassphrased"
	_, artifact := deployed(t, g, name, func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": secretRef()}
		s.Spec.RetryMaxBackoffDurationSeconds = 1
	})
	set := func(passphrase string) {
		secret := &corev1.Secret{}
		g.Expect(system.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: stage.PassphraseSecret}, secret)).To(Succeed())
		secret.Data[stage.PassphraseKey] = []byte(passphrase)
		g.Expect(system.Client.Update(t.Context(), secret)).To(Succeed())
	}
	set("another")
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Refresh = true })
	stack := await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("incorrect passphrase"))
	set(passphraseCanary)
	await(t.Context(), g, name, ready(artifact.Digest))
}
