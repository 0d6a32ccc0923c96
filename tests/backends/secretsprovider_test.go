package backends_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// stateOf is the state of the app's stack in the directory backend.
func stateOf(t *testing.T, app *stage.App) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(system.Dir, "state", ".pulumi", "stacks", app.Name, "dev.json"))
	succeed(t, err)
	return string(content)
}

func TestSecretsAreEncryptedByKeyManagementService(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	token := variables{"VAULT_ADDR": keys.Address, "VAULT_TOKEN": vaultToken}
	app := deploy(t, "vault-keys", system.BackendURL, variables{"VAULT_ADDR": keys.Address, "VAULT_TOKEN": credentialCanary}, func(s *pulumiv1.Stack) {
		s.Spec.SecretsProvider = "hashivault://pulumi"
		delete(s.Spec.EnvRefs, "PULUMI_CONFIG_PASSPHRASE")
	})
	stack := await(t, app, failing("permission denied"))
	g.Expect(failureOf(t, app, stack)).To(Equal(autov1alpha1.SecretsProviderFailedReason))

	replaceCredentials(t, app, token)
	request(t, app)
	stack = await(t, app, showing("1"))
	g.Expect(string(stack.Status.Outputs["hidden"].Raw)).To(Equal(`"[secret]"`))
	g.Expect(stateOf(t, app)).To(And(ContainSubstring("hashivault://pulumi"), ContainSubstring("encryptedkey"), Not(ContainSubstring(configCanary))))
	commit(t, app, "2")
	await(t, app, showing("2"))
	remove(t, app)
}

// Without a pod the file has to be where the controller runs.
func TestPassphraseComesFromFile(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "passphrase")
	app := deploy(t, "passphrase-file", system.BackendURL, nil, func(s *pulumiv1.Stack) {
		delete(s.Spec.EnvRefs, "PULUMI_CONFIG_PASSPHRASE")
		s.Spec.SecretsProvider = "passphrase"
		s.Spec.EnvRefs["PULUMI_CONFIG_PASSPHRASE_FILE"] = pulumiv1.ResourceRef{
			Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: file},
		}
	})
	stack := await(t, app, failing("read the passphrase file"))
	g.Expect(failureOf(t, app, stack)).To(Equal(autov1alpha1.SecretsProviderFailedReason))

	succeed(t, os.WriteFile(file, []byte(credentialCanary+"\n"), 0o600))
	request(t, app)
	await(t, app, showing("1"))
	g.Expect(stateOf(t, app)).To(And(ContainSubstring(`"salt"`), Not(ContainSubstring(configCanary))))

	succeed(t, os.WriteFile(file, []byte("another one"), 0o600))
	commit(t, app, "2")
	stack = await(t, app, failing("incorrect passphrase"))
	g.Expect(failureOf(t, app, stack)).To(Equal(autov1alpha1.SecretsProviderFailedReason))
}
