package backends_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

func TestSecretsAreEncryptedByKeyManagementService(t *testing.T) {
	t.Parallel()
	login := func(token string) variables { return variables{"VAULT_ADDR": keys.Address, "VAULT_TOKEN": token} }
	a := deploy(t, "vault-keys", system.BackendURL, login(credentialCanary), func(s *pulumiv1.Stack) {
		s.Spec.SecretsProvider = "hashivault://pulumi"
		delete(s.Spec.EnvRefs, "PULUMI_CONFIG_PASSPHRASE")
	})
	a.awaitFailure("permission denied", autov1alpha1.SecretsProviderFailedReason)
	a.login(login(vaultToken))
	stack := a.Await(scene.Showing("1"))
	a.Expect(scene.Output(stack, "hidden")).To(Equal(`"[secret]"`))
	a.Expect(a.State(a.Scene.Name, "dev")).To(And(
		ContainSubstring("hashivault://pulumi"), ContainSubstring("encryptedkey"), Not(ContainSubstring(configCanary))))
	a.commit("2")
	a.remove()
}

// Without a pod the file has to be where the controller runs.
func TestPassphraseComesFromFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "passphrase")
	a := deploy(t, "passphrase-file", system.BackendURL, nil, func(s *pulumiv1.Stack) {
		delete(s.Spec.EnvRefs, "PULUMI_CONFIG_PASSPHRASE")
		s.Spec.SecretsProvider = "passphrase"
		s.Spec.EnvRefs["PULUMI_CONFIG_PASSPHRASE_FILE"] = pulumiv1.ResourceRef{
			Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: file},
		}
	})
	a.awaitFailure("read the passphrase file", autov1alpha1.SecretsProviderFailedReason)
	a.Expect(os.WriteFile(file, []byte(credentialCanary+"\n"), 0o600)).To(Succeed())
	a.Request()
	a.Await(scene.Showing("1"))
	a.Expect(a.State(a.Scene.Name, "dev")).To(And(ContainSubstring(`"salt"`), Not(ContainSubstring(configCanary))))

	a.Expect(os.WriteFile(file, []byte("another one"), 0o600)).To(Succeed())
	a.push(program(a.Scene.Name, "2"))
	a.awaitFailure("incorrect passphrase", autov1alpha1.SecretsProviderFailedReason)
}
