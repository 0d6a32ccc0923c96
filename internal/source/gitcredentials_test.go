package source

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// selectorOf selects the key of the Secret "git".
func selectorOf(key string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{Name: "git", Key: key}
}

func optional(selector *corev1.SecretKeySelector) *corev1.SecretKeySelector {
	selector.Optional = new(true)
	return selector
}

func secretRef(name string) *meta.LocalObjectReference {
	return &meta.LocalObjectReference{Name: name}
}

// readAuth reads the credentials. The cluster has the Secret "git" with these values, and a few other objects.
func readAuth(t *testing.T, url string, auth *autov1alpha1.GitAuth, data map[string]string) (git.Remote, error) {
	t.Helper()
	live := fake.NewClientBuilder().WithObjects(
		secretOf("git", data),
		secretOf("tls", map[string]string{"ca.crt": "CA", "tls.crt": "CERT", "tls.key": "KEY"}),
		secretOf("proxy", map[string]string{"address": "http://proxy:3128\n", "username": "pu", "password": "pp"}),
		&corev1.ConfigMap{Namespace: "team", Name: "hosts",
			Data: map[string]string{"known_hosts": "from configmap", "more": "under another key"}},
	).Build()
	return readRemote(t.Context(), live, repositoryOf("team", &autov1alpha1.GitSource{URL: url, Auth: auth}))
}

func TestCredentialsAreReadFromWhereTheyAreKept(t *testing.T) {
	const ssh = "ssh://git@git.example/demo"
	all := map[string]string{"sshPrivateKey": "KEY", "password": "pass\n", "accessToken": "token\n", "username": "user",
		"id": "12", "installation": "34", "known_hosts": "from secret"}
	app := &autov1alpha1.GitHubAppAuth{AppID: selectorOf("id"), InstallationID: selectorOf("installation"), PrivateKey: selectorOf("sshPrivateKey")}
	for _, test := range []struct {
		name string
		url  string
		auth *autov1alpha1.GitAuth
		data map[string]string
		want git.Remote
	}{
		{name: "none"},
		{"private key first", ssh, &autov1alpha1.GitAuth{SSHPrivateKey: selectorOf("sshPrivateKey"), Password: selectorOf("password"),
			Token: selectorOf("accessToken"), GitHubApp: app, Username: selectorOf("username"), SecretRef: secretRef("git")}, all,
			git.Remote{Auth: git.Auth{PrivateKey: []byte("KEY"), Passphrase: []byte("pass")}, KnownHosts: []byte("from secret")}},
		{"then the token", "", &autov1alpha1.GitAuth{Token: selectorOf("accessToken"), GitHubApp: app, Username: selectorOf("username"),
			Password: selectorOf("password")}, all, git.Remote{Auth: git.Auth{Token: "token"}}},
		{"then the app", "", &autov1alpha1.GitAuth{GitHubApp: app, Username: selectorOf("username"), Password: selectorOf("password")}, all,
			git.Remote{Auth: git.Auth{GitHubApp: &git.GitHubApp{AppID: "12", InstallationID: "34", PrivateKey: []byte("KEY")}}}},
		{"then user and password", "", &autov1alpha1.GitAuth{Username: selectorOf("username"), Password: selectorOf("password"), SecretRef: secretRef("git")}, all,
			git.Remote{Auth: git.Auth{Username: "user", Password: "pass"}}},
		{"what is optional and not there does not count", "", &autov1alpha1.GitAuth{
			SSHPrivateKey: optional(selectorOf("sshPrivateKey")), Token: optional(selectorOf("accessToken"))},
			map[string]string{"accessToken": "token"}, git.Remote{Auth: git.Auth{Token: "token"}}},
		{"a Secret over ssh", ssh, &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, all,
			git.Remote{Auth: git.Auth{PrivateKey: []byte("KEY"), Passphrase: []byte("pass")}, KnownHosts: []byte("from secret")}},
		{"the same Secret over https", "", &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, all,
			git.Remote{Auth: git.Auth{Token: "token"}, KnownHosts: []byte("from secret")}},
		{"a Secret of Flux over ssh, by the short form", "git@git.example:demo", &autov1alpha1.GitAuth{SecretRef: secretRef("git")},
			map[string]string{"identity": "KEY", "identity.pub": "PUB", "known_hosts": "hosts"},
			git.Remote{Auth: git.Auth{PrivateKey: []byte("KEY"), Passphrase: []byte{}}, KnownHosts: []byte("hosts")}},
		{"a Secret of Flux over https", "", &autov1alpha1.GitAuth{SecretRef: secretRef("git")},
			map[string]string{"username": "user", "password": "", "caFile": "CA"},
			git.Remote{Auth: git.Auth{Username: "user"}, CA: []byte("CA")}},
		{"a Secret of Flux with a token", "", &autov1alpha1.GitAuth{SecretRef: secretRef("git")},
			map[string]string{"bearerToken": "token"}, git.Remote{Auth: git.Auth{BearerToken: "token"}}},
		{"a Secret of Flux with an app", "", &autov1alpha1.GitAuth{SecretRef: secretRef("git")},
			map[string]string{"githubAppID": "1", "githubAppInstallationID": "2", "githubAppPrivateKey": "KEY"},
			git.Remote{Auth: git.Auth{GitHubApp: &git.GitHubApp{AppID: "1", InstallationID: "2", PrivateKey: []byte("KEY")}}}},
		{"a Secret of Flux with the client ID of an app", "", &autov1alpha1.GitAuth{SecretRef: secretRef("git")},
			map[string]string{"githubAppClientID": "Iv1", "githubAppInstallationID": "2", "githubAppPrivateKey": "KEY"},
			git.Remote{Auth: git.Auth{GitHubApp: &git.GitHubApp{AppID: "Iv1", InstallationID: "2", PrivateKey: []byte("KEY")}}}},
		{"a Secret of Flux with an app of an owner", "", &autov1alpha1.GitAuth{SecretRef: secretRef("git")},
			map[string]string{"githubAppID": "1", "githubAppInstallationOwner": "org\n", "githubAppPrivateKey": "KEY", "githubAppBaseURL": "https://github.example.com/api/v3"},
			git.Remote{Auth: git.Auth{GitHubApp: &git.GitHubApp{AppID: "1", InstallationOwner: "org", PrivateKey: []byte("KEY"),
				BaseURL: "https://github.example.com/api/v3"}}}},
		{"settings", ssh, &autov1alpha1.GitAuth{SecretRef: secretRef("git"), KnownHostsRef: &autov1alpha1.KnownHostsReference{Name: "hosts"},
			CertSecretRef: secretRef("tls"), ProxySecretRef: secretRef("proxy")}, all,
			git.Remote{Auth: git.Auth{PrivateKey: []byte("KEY"), Passphrase: []byte("pass")}, KnownHosts: []byte("from configmap"),
				CA: []byte("CA"), ClientCert: []byte("CERT"), ClientKey: []byte("KEY"),
				Proxy: git.Proxy{Address: "http://proxy:3128", Username: "pu", Password: "pp"}}},
		{"known hosts of a Secret, without credentials", ssh, &autov1alpha1.GitAuth{
			KnownHostsRef: &autov1alpha1.KnownHostsReference{Kind: "Secret", Name: "git", Key: "username"}}, all,
			git.Remote{KnownHosts: []byte("user")}},
		{"known hosts under another key", ssh, &autov1alpha1.GitAuth{KnownHostsRef: &autov1alpha1.KnownHostsReference{Name: "hosts", Key: "more"}}, all,
			git.Remote{KnownHosts: []byte("under another key")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			if test.url == "" {
				test.url = testURL
			}
			test.want.URL = test.url
			found, err := readAuth(t, test.url, test.auth, test.data)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(test.want))
		})
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	for _, test := range []struct {
		name string
		auth *autov1alpha1.GitAuth
		data map[string]string
		want string
	}{
		{"Secret", &autov1alpha1.GitAuth{SecretRef: secretRef("absent")}, nil, `Secret "absent"`},
		{"ConfigMap", &autov1alpha1.GitAuth{KnownHostsRef: &autov1alpha1.KnownHostsReference{Name: "absent"}}, nil, `ConfigMap "absent"`},
		{"key", &autov1alpha1.GitAuth{Token: selectorOf("token")}, map[string]string{"other": canary}, `Secret "git" has no key "token"`},
		{"key of known hosts", &autov1alpha1.GitAuth{KnownHostsRef: &autov1alpha1.KnownHostsReference{Name: "hosts", Key: "x"}}, nil, `ConfigMap "hosts" has no key "x"`},
		{"password", &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, map[string]string{"username": canary}, `"password"`},
		{"user", &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, map[string]string{"password": canary}, `"username"`},
		{"installation", &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, map[string]string{"githubAppID": canary}, `"githubAppInstallationID"`},
		{"app", &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, map[string]string{"githubAppPrivateKey": canary}, `neither the key "githubAppID" nor "githubAppClientID"`},
		{"everything", &autov1alpha1.GitAuth{SecretRef: secretRef("git")}, map[string]string{"tokn": canary}, "none of the keys"},
		{"certificate", &autov1alpha1.GitAuth{CertSecretRef: secretRef("git")}, map[string]string{"x": canary}, `"ca.crt"`},
		{"key of a certificate", &autov1alpha1.GitAuth{CertSecretRef: secretRef("git")}, map[string]string{"tls.crt": canary}, `"tls.key"`},
		{"proxy", &autov1alpha1.GitAuth{ProxySecretRef: secretRef("git")}, map[string]string{"x": canary}, `"address"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := readAuth(t, testURL, test.auth, test.data)
			problem := problemIn(g, err)
			g.Expect(problem.Reason).To(Equal("SecretNotFound"))
			g.Expect(problem.Message).To(ContainSubstring(test.want))
			g.Expect(problem.Message).NotTo(ContainSubstring(canary))
			g.Expect(problem.Permanent).To(BeFalse())
		})
	}
}

// secretChanged notifies the Git that the Secret "git" of the namespace has changed.
func (d *driver) secretChanged(namespace string) {
	d.ReferencesChanged(references.Key{Kind: references.Secret, Namespace: namespace, Name: "git"})
}

// locate finds the artifact of a commit for an Update.
func (d *driver) locate(source *autov1alpha1.GitSource) error {
	_, err := d.stacks.Locate(d.t.Context(), "team", &autov1alpha1.UpdateSource{Git: source})
	return err
}

func withSecret() *autov1alpha1.GitSource {
	source := branch("main")
	source.Auth = &autov1alpha1.GitAuth{SecretRef: secretRef("git")}
	return source
}

func TestEventOfASecretMovesTheNextPollForward(t *testing.T) {
	d := newDriver(t, GitOptions{})
	query := queryOf("a", withSecret())
	query.Interval = time.Hour
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	secret := secretOf("git", map[string]string{"accessToken": "one"})
	d.Expect(d.client.Create(t.Context(), secret)).To(Succeed())
	d.secretChanged("other")
	d.pass(time.Second)
	d.Expect(d.questions()).To(BeZero(), "it is a Secret of another namespace")
	d.secretChanged("team")
	d.pollAll()
	d.Expect(d.commit(query)).To(Equal(firstSHA))
	d.questions()

	d.pass(time.Minute)
	d.secretChanged("team")
	d.pollAll()
	d.Expect(d.questions()).To(BeZero(), "what the repository is read with is the same")

	secret.Data["accessToken"] = []byte("two")
	d.Expect(d.client.Update(t.Context(), secret)).To(Succeed())
	d.servers.err = gitError(git.AuthenticationFailed)
	d.notified()
	d.secretChanged("team")
	d.pollAll()
	d.Expect(d.servers.asked[0].Auth.Token).To(Equal("two"))
	d.Expect(d.notified()).To(Equal([]string{"a"}))
	problem := d.problem(query)
	d.Expect(problem.Reason).To(Equal("AuthenticationFailed"))
	d.Expect(problem.Message).To(ContainSubstring(`check the credentials in Secret "git"`))

	d.pass(0)
	d.servers.err = nil
	secret.Data["accessToken"] = []byte("three")
	d.Expect(d.client.Update(t.Context(), secret)).To(Succeed())
	d.pass(time.Minute)
	d.secretChanged("team")
	d.pollAll()
	d.Expect(d.commit(query)).To(Equal(firstSHA), "the renewed credentials are tried at once")
}

func TestSecretThatChangesWhileItIsUsedIsReadAgain(t *testing.T) {
	d := newDriver(t, GitOptions{}, secretOf("git", map[string]string{"accessToken": "one"}))
	query := queryOf("a", withSecret())
	_, _ = d.stacks.Subscribe(query)
	d.servers.during = func() {
		d.servers.during = nil
		d.Expect(d.client.Update(t.Context(), secretOf("git", map[string]string{"accessToken": "two"}))).To(Succeed())
		d.secretChanged("team")
	}
	d.pollAll()
	d.Expect(d.servers.asked).To(HaveLen(2))
	d.Expect(d.servers.asked[1].Auth.Token).To(Equal("two"))
}

func TestSecretIsReadOncePerPoll(t *testing.T) {
	reads := 0
	counting := interceptor.NewClient(fake.NewClientBuilder().WithObjects(secretOf("git", map[string]string{"accessToken": "one"})).Build(),
		interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			reads++
			return c.Get(ctx, key, object, options...)
		}})
	d := newDriver(t, GitOptions{APIReader: counting})
	for range 50 {
		for _, name := range []string{"a", "b", "c"} {
			_, _ = d.stacks.Subscribe(queryOf(name, withSecret()))
		}
	}
	d.pollAll()
	d.pass(2 * time.Minute)
	d.Expect(reads).To(Equal(3))
}

func TestAPIServerThatFailsIsNoMissingSecret(t *testing.T) {
	failure := errors.New("connection refused, " + canary)
	failing := interceptor.NewClient(fake.NewClientBuilder().Build(),
		interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return failure
		}})
	d := newDriver(t, GitOptions{APIReader: failing})
	query := queryOf("a", withSecret())
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	problem := d.problem(query)
	d.Expect(problem.Reason).To(Equal("SourceUnavailable"))
	d.Expect(problem.Message).NotTo(ContainSubstring(canary))
	err := d.locate(&autov1alpha1.GitSource{URL: testURL, Ref: firstSHA, Auth: withSecret().Auth})
	d.Expect(err).To(HaveOccurred())
	d.Expect(errors.As(err, new(*gitFailure))).To(BeTrue())

	failure = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "git", errors.New("no"))
	d.pass(10 * time.Second)
	d.Expect(d.problem(query).Reason).To(Equal("AccessDenied"))
}

func TestReferenceToACommitNeedsItsSecrets(t *testing.T) {
	g := NewWithT(t)
	d := newDriver(t, GitOptions{})
	source := withSecret()
	source.Ref = firstSHA
	g.Expect(problemIn(g, d.locate(source)).Reason).To(Equal("SecretNotFound"))

	g.Expect(d.client.Create(t.Context(), secretOf("git", map[string]string{"accessToken": "one"}))).To(Succeed())
	g.Expect(d.locate(source)).To(Succeed())
	reference, err := d.stacks.Reference("team", &autov1alpha1.UpdateSource{Git: source, Digest: "sha256:abc"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reference.Digest).To(Equal("sha256:abc"))
	found, err := d.stacks.Subscribe(queryOf("a", source))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reference.Maker.Key()).To(Equal(found.Maker.Key()), "an Update shares the making with its Stack")

	source.Ref = "main"
	_, err = d.stacks.Reference("team", &autov1alpha1.UpdateSource{Git: source})
	g.Expect(problemIn(g, err).Permanent).To(BeTrue())
}

func TestSecretWithTwoIDsOfAnAppIsRefusedAsByFlux(t *testing.T) {
	d := newDriver(t, GitOptions{}, secretOf("git", map[string]string{
		"githubAppID": "1", "githubAppClientID": "Iv1", "githubAppInstallationID": "2", "githubAppPrivateKey": canary}))
	query := queryOf("a", withSecret())
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	d.Expect(d.questions()).To(BeZero())
	problem := d.problem(query)
	d.Expect(problem.Reason).To(Equal("AuthenticationFailed"))
	d.Expect(problem.Message).To(And(ContainSubstring(`"githubAppID"`), ContainSubstring(`"githubAppClientID"`), Not(ContainSubstring(canary))))
}
