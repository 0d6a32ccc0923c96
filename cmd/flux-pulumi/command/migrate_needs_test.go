package command

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestPlanOfAMigrationNamesCredentialsOfGitThatAreRejected(t *testing.T) {
	g := NewWithT(t)
	secret := func(namespace string) pulumiv1.ResourceRef {
		return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Namespace: namespace, Name: "git", Key: "key"}}
	}
	env, literal, elsewhere := pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefEnv}, pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral}, secret("elsewhere")
	g.Expect(gitAuthNeeds("apps", nil)).To(BeEmpty())
	g.Expect(gitAuthNeeds("apps", &pulumiv1.GitAuthConfig{
		SSHAuth: &pulumiv1.SSHAuth{SSHPrivateKey: secret("apps"), Password: new(secret(""))},
	})).To(BeEmpty())
	stack := &pulumiv1.Stack{Namespace: "apps", Name: "shop", Spec: pulumiv1.StackSpec{ProjectRepo: "https://git.example.com/shop", GitAuth: &pulumiv1.GitAuthConfig{
		PersonalAccessToken: &elsewhere, SSHAuth: &pulumiv1.SSHAuth{SSHPrivateKey: env}, BasicAuth: &pulumiv1.BasicAuth{UserName: literal, Password: secret("apps")},
	}}}
	g.Expect(needsOf(stack)).To(ContainElements(
		"gitAuth[accessToken] names a Secret in namespace elsewhere: copy it into that of the Stack.",
		"gitAuth[sshAuth.sshPrivateKey] of type Env is rejected: use a Secret.",
		"gitAuth[basicAuth.userName] of type Literal is rejected: use a Secret.",
	))
}
