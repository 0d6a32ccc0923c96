package e2e_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/vault"
)

func TestSecretsProviderOfAStackFollowsItsSpec(t *testing.T) {
	suite.Long(t, "each change of a secrets provider")
	p := begin(t, "reencrypted")
	server, err := vault.Start(p.Context(), system.ControlPlane)
	p.Succeed(err)
	defer func() { p.Succeed(server.Stop()) }()
	token, err := server.CreateKey(p.Context(), "stack")
	p.Succeed(err)
	program := p.yaml("config:", "  password: {type: string, secret: true}", "outputs:", "  hidden: ${password}")
	artifact := p.put(program)
	p.start(artifact, func(s *pulumiv1.Stack) {
		usesPassword(s)
		for variable, value := range map[string]string{"VAULT_ADDR": server.Address, "VAULT_TOKEN": token} {
			s.Spec.EnvRefs[variable] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
		}
	})
	stack := p.Await(ready(artifact.Digest))
	p.Expect(p.State(p.Name, "dev")).To(ContainSubstring(`"secrets_providers":{"type":"passphrase"`))
	for _, step := range []struct{ provider, state string }{
		{"hashivault://stack", `"secrets_providers":{"type":"cloud","state":{"url":"hashivault://stack"`},
		{"passphrase", `"secrets_providers":{"type":"passphrase"`},
	} {
		p.Change(func(s *pulumiv1.Stack) { s.Spec.SecretsProvider = step.provider })
		stack = p.awaitNext(stack)
		p.Expect(p.State(p.Name, "dev")).To(ContainSubstring(step.state))
		p.Expect(string(p.outputs(stack).Data["hidden"])).To(Equal(`"` + secretCanary + `"`))
	}
	changes := slices.DeleteFunc(p.calls(p.Name), func(call string) bool { return !strings.Contains(call, "change-secrets-provider") })
	p.Expect(changes).To(HaveLen(2))
}

func TestChangedPassphraseIsReportedAndHealsWhenItIsRestored(t *testing.T) {
	suite.Long(t, "each change of a secrets provider")
	p := begin(t, "repassphrased")
	_, artifact := p.deployed(usesPassword, func(s *pulumiv1.Stack) { s.Spec.RetryMaxBackoffDurationSeconds = 1 })
	set := func(passphrase string) {
		changed := secret()
		changed[stage.PassphraseKey] = passphrase
		p.update(p.Secret(stage.PassphraseSecret, changed))
	}
	set("another")
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Refresh = true })
	stack := p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("incorrect passphrase"))
	set(passphraseCanary)
	p.Await(ready(artifact.Digest))
}
