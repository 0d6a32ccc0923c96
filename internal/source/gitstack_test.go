package source

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func inSecret(key string) *pulumiv1.ResourceRef {
	return &pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "git", Key: key}}
}

func literal(value string) *pulumiv1.ResourceRef {
	return &pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
}

func gitStack(spec pulumiv1.GitSource) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		Namespace: "team", Name: "app",
		Spec: pulumiv1.StackSpec{GitSource: spec},
	}
}

func TestGitFieldsOfAStackBecomeASource(t *testing.T) {
	ssh := &pulumiv1.SSHAuth{SSHPrivateKey: *inSecret("key"), Password: inSecret("passphrase")}
	basic := &pulumiv1.BasicAuth{UserName: *inSecret("user"), Password: *inSecret("pass")}
	app := &pulumiv1.GitHubAppAuth{AppID: *inSecret("app"), InstallationID: *inSecret("installation"), PrivateKey: *inSecret("key")}
	hosts := &autov1alpha1.KnownHostsReference{Name: "hosts"}
	for _, test := range []struct {
		name string
		spec pulumiv1.GitSource
		want autov1alpha1.GitSource
	}{
		{"branch", pulumiv1.GitSource{Branch: "main", RepoDir: "infra", Shallow: true, RecurseSubmodules: true},
			autov1alpha1.GitSource{Ref: "main", Dir: "infra", Shallow: true, RecurseSubmodules: true}},
		{"commit", pulumiv1.GitSource{Commit: firstSHA}, autov1alpha1.GitSource{Ref: firstSHA}},
		{"ssh first", pulumiv1.GitSource{Branch: "main", GitAuthSecret: "old", GitAuth: &pulumiv1.GitAuthConfig{
			PersonalAccessToken: inSecret("token"), SSHAuth: ssh, BasicAuth: basic, GitHubApp: app, KnownHostsRef: hosts}},
			autov1alpha1.GitSource{Ref: "main", Auth: &autov1alpha1.GitAuth{
				SSHPrivateKey: selectorOf("key"), Password: selectorOf("passphrase"), KnownHostsRef: hosts}}},
		{"then token", pulumiv1.GitSource{Branch: "main", GitAuth: &pulumiv1.GitAuthConfig{
			PersonalAccessToken: inSecret("token"), BasicAuth: basic, GitHubApp: app, CertSecretRef: secretRef("tls"), ProxySecretRef: secretRef("proxy")}},
			autov1alpha1.GitSource{Ref: "main", Auth: &autov1alpha1.GitAuth{
				Token: selectorOf("token"), CertSecretRef: secretRef("tls"), ProxySecretRef: secretRef("proxy")}}},
		{"then app", pulumiv1.GitSource{Branch: "main", GitAuth: &pulumiv1.GitAuthConfig{BasicAuth: basic, GitHubApp: app}},
			autov1alpha1.GitSource{Ref: "main", Auth: &autov1alpha1.GitAuth{GitHubApp: &autov1alpha1.GitHubAppAuth{
				AppID: selectorOf("app"), InstallationID: selectorOf("installation"), PrivateKey: selectorOf("key")}}}},
		{"then user and password", pulumiv1.GitSource{Branch: "main", GitAuth: &pulumiv1.GitAuthConfig{BasicAuth: basic}},
			autov1alpha1.GitSource{Ref: "main", Auth: &autov1alpha1.GitAuth{Username: selectorOf("user"), Password: selectorOf("pass")}}},
		{"deprecated Secret", pulumiv1.GitSource{Branch: "main", GitAuthSecret: "old"},
			autov1alpha1.GitSource{Ref: "main", Auth: &autov1alpha1.GitAuth{SecretRef: secretRef("old")}}},
		{"deprecated Secret with settings", pulumiv1.GitSource{Branch: "main", GitAuthSecret: "old", GitAuth: &pulumiv1.GitAuthConfig{KnownHostsRef: hosts}},
			autov1alpha1.GitSource{Ref: "main", Auth: &autov1alpha1.GitAuth{SecretRef: secretRef("old"), KnownHostsRef: hosts}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			test.spec.ProjectRepo, test.want.URL = testURL, testURL
			found, err := gitSourceOf(gitStack(test.spec))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(&test.want))
		})
	}
}

func TestGitFieldThatCannotBeUsedIsNamed(t *testing.T) {
	elsewhere := inSecret("token")
	elsewhere.SecretRef.Namespace = "other"
	token := func(ref *pulumiv1.ResourceRef) *pulumiv1.GitAuthConfig {
		return &pulumiv1.GitAuthConfig{PersonalAccessToken: ref}
	}
	for _, test := range []struct {
		name string
		spec pulumiv1.GitSource
		want string
	}{
		{"no repository", pulumiv1.GitSource{RepoDir: "infra"}, "spec.projectRepo is missing"},
		{"branch and commit", pulumiv1.GitSource{ProjectRepo: testURL, Branch: "a", Commit: "b"}, "spec.branch and spec.commit are both set"},
		{"no URL", pulumiv1.GitSource{ProjectRepo: "not a URL " + canary, Branch: "a"}, "spec.projectRepo: the URL of the git repository"},
		{"another scheme", pulumiv1.GitSource{ProjectRepo: "carrier://user:" + canary + "@loft/pigeon", Commit: firstSHA}, "spec.projectRepo: the URL of the git repository"},
		{"a file", pulumiv1.GitSource{ProjectRepo: "file:///etc", Branch: "a"}, "spec.projectRepo: file:// is not accepted"},
		{"neither", pulumiv1.GitSource{ProjectRepo: testURL}, "neither spec.branch nor spec.commit"},
		{"another namespace", pulumiv1.GitSource{ProjectRepo: testURL, Branch: "a", GitAuth: token(elsewhere)}, `spec.gitAuth.accessToken.secret is in namespace "other"`},
		{"literal", pulumiv1.GitSource{ProjectRepo: testURL, Branch: "a", GitAuth: token(literal(canary))}, `spec.gitAuth.accessToken is of type "Literal"`},
		{"environment", pulumiv1.GitSource{ProjectRepo: testURL, Branch: "a", GitAuth: token(&pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefEnv})}, `of type "Env"`},
		{"no Secret", pulumiv1.GitSource{ProjectRepo: testURL, Branch: "a", GitAuth: token(&pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret})}, "needs the name of a Secret"},
		{"deep", pulumiv1.GitSource{ProjectRepo: testURL, Branch: "a", GitAuth: &pulumiv1.GitAuthConfig{
			BasicAuth: &pulumiv1.BasicAuth{UserName: *inSecret("user"), Password: *literal(canary)}}}, "spec.gitAuth.basicAuth.password is"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := gitSourceOf(gitStack(test.spec))
			problem := problemIn(g, err)
			g.Expect(problem.Reason).To(Equal("SpecInvalid"))
			g.Expect(problem.Permanent).To(BeTrue())
			g.Expect(problem.Message).To(ContainSubstring(test.want))
			g.Expect(problem.Message).NotTo(ContainSubstring(canary))
		})
	}
}

func TestSetTakesTheSourceThatCounts(t *testing.T) {
	d := newDriver(t, GitOptions{})
	set := &Set{Sources: []Source{d.stacks}}
	stack := gitStack(pulumiv1.GitSource{ProjectRepo: testURL, Branch: "main"})
	stack.Spec.FluxSource = &pulumiv1.FluxSource{}
	_, err := set.Resolve(t.Context(), stack)
	d.Expect(problemIn(d.WithT, err).Pending).To(BeTrue())
	d.pollAll()
	found, err := set.Resolve(t.Context(), stack)
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(found.Commit()).To(Equal(firstSHA))
	d.pass(pulumiv1.MinResyncInterval)
	d.Expect(d.questions()).To(Equal(2))
	_, err = set.Refresh(t.Context(), stack)
	d.Expect(err).NotTo(HaveOccurred())

	stack.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "one", pulumiv1.ReconcileRequestAnnotation: "two"}
	_, err = set.Resolve(t.Context(), stack)
	d.Expect(problemIn(d.WithT, err).Pending).To(BeTrue(), "a request asks the server")
	d.pollAll()
	_, err = set.Resolve(t.Context(), stack)
	d.Expect(err).NotTo(HaveOccurred())
	stack.Status.LastHandledReconcileAt, stack.Status.ObservedReconcileRequest = "one", "two"
	_, err = set.Resolve(t.Context(), stack)
	d.Expect(err).NotTo(HaveOccurred(), "one that was handled does not")

	stack.Spec.GitSource = pulumiv1.GitSource{Shallow: true}
	_, err = set.Resolve(t.Context(), stack)
	d.Expect(problemIn(d.WithT, err).Message).To(ContainSubstring("spec.projectRepo is missing"))
	d.Expect(d.subscriptions).To(BeEmpty())

	stack.Spec = pulumiv1.StackSpec{}
	found, err = set.Resolve(t.Context(), stack)
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(found).To(BeNil(), "it has no source")
}
