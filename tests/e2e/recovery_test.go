package e2e_test

import (
	"archive/tar"
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// recovery is a cause of failure that comes and goes outside of the Stack.
type recovery struct {
	name string
	// program returns the program of the Stack. Nil stands for one that returns a number.
	program func(*recoveryFixture) gitserver.Files
	// before creates the cause for a Stack that does not exist yet, and change makes the Stack depend on it.
	before func(*recoveryFixture)
	change func(*recoveryFixture, *pulumiv1.Stack)
	// prepare runs when the Stack exists. after creates the cause for a Stack that was deployed; nil means that the Stack was never
	// deployed.
	prepare, after func(*recoveryFixture)
	// reasons are the reasons of the condition Ready, one of which the Stack must have, and cause is the reason of the Update's condition
	// Failed. An empty cause means that the Stack waits, which is not a failure.
	reasons []string
	cause   string
	says    string
	mend    func(*recoveryFixture)
	// within is how long after mend the Stack may take to become Ready.
	within time.Duration
}

const (
	// soon is long enough for an attempt with the retryInterval of these Stacks, on a busy machine.
	soon = 45 * time.Second
	// polled is long enough for a Stack that only the interval of --requeue-dependency, 30 seconds, brings back.
	polled = 75 * time.Second
	// attemptInterval is the retryInterval of these Stacks.
	attemptInterval = 2 * time.Second
)

// failures are the reasons of a Stack whose attempts fail: first the one, and from the third attempt on the other.
var failures = []string{pulumiv1.RetryingAfterFailureReason, pulumiv1.UpdateFailedReason}

// recoveryFixture is a play with a Stack that fails and recovers.
type recoveryFixture struct {
	*fixture
	// dir is a directory for this Stack.
	dir string
	// artifact is the one that the Stack has to have applied in the end.
	artifact *meta.Artifact
	server   *server
}

func newPatient(t *testing.T, name string) *recoveryFixture {
	t.Helper()
	return &recoveryFixture{fixture: begin(t, name), dir: t.TempDir(), server: newServer(t)}
}

// TestStackRecoversWhenTheCauseGoesAway breaks what a Stack needs, and repairs it without touching the Stack: no edit, no request, no
// restart, no new revision. The version of pulumi is another such cause, see TestStackWithAPulumiThatIsTooOldIsStalledUntilItIsNot.
func TestStackRecoversWhenTheCauseGoesAway(t *testing.T) {
	suite.Long(t, "each cause that can go away")
	t.Parallel()
	for _, test := range slices.Concat(sourceRecoveries(), gitRecoveries(), referenceRecoveries(), pulumiRecoveries(), backendRecoveries()) {
		t.Run(test.name, func(t *testing.T) {
			p := newPatient(t, "recovery-"+test.name)
			p.fail(test)
			p.recover(test)
		})
	}
}

// fail makes the Stack fail.
func (p *recoveryFixture) fail(test recovery) {
	program := p.returning(1)
	if test.program != nil {
		program = test.program(p)
	}
	p.artifact = p.put(program)
	if test.before != nil {
		test.before(p)
	}
	p.start(p.artifact, func(s *pulumiv1.Stack) {
		s.Spec.RetryInterval = &metav1.Duration{Duration: attemptInterval}
		if test.change != nil {
			test.change(p, s)
		}
	})
	if test.prepare != nil {
		test.prepare(p)
	}
	if test.after != nil {
		p.Await(ready(p.artifact.Digest))
		test.after(p)
	}
	stack := p.Await(func(s *pulumiv1.Stack) bool {
		return conditions.IsFalse(s, meta.ReadyCondition) && slices.Contains(test.reasons, conditions.GetReason(s, meta.ReadyCondition))
	})
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring(test.says))
	p.Logf("%s: %s", conditions.GetReason(stack, meta.ReadyCondition), statuscheck.Message(stack))
	if test.cause == "" {
		// Waiting is not a failure.
		p.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.ProgressingWithRetryReason))
		p.Expect(stack.Status.LastUpdate == nil || stack.Status.LastUpdate.Failures == 0).To(BeTrue())
		return
	}
	p.Expect(causes(p)).To(ContainElement(test.cause))
}

// causes returns the reasons for which Updates of the Stack failed.
func causes(p *recoveryFixture) (reasons []string) {
	found := p.Updates()
	for i := range found {
		if conditions.IsTrue(&found[i], autov1alpha1.UpdateFailed) {
			reasons = append(reasons, conditions.GetReason(&found[i], autov1alpha1.UpdateFailed))
		}
	}
	return reasons
}

// recover removes the cause, and waits until the Stack is Ready.
func (p *recoveryFixture) recover(test recovery) {
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	generation := stack.Generation
	mended := time.Now()
	test.mend(p)
	p.Patience = test.within
	stack = p.Await(ready(p.artifact.Digest))
	p.Logf("Ready %s after its cause was mended", time.Since(mended).Round(100*time.Millisecond))
	p.Expect(stack.Generation).To(Equal(generation))
	p.Expect(stack.Annotations).NotTo(Or(HaveKey(meta.ReconcileRequestAnnotation), HaveKey(pulumiv1.ReconcileRequestAnnotation)))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

// path returns a path in the directory of the patient.
func (p *recoveryFixture) path(names ...string) string {
	return filepath.Join(append([]string{p.dir}, names...)...)
}

// withoutAnswer is the status of a server that never responds.
const withoutAnswer = 0

// server is a server on which programs depend. It responds with the status, and with the content when the status is 200.
type server struct {
	*httptest.Server
	status  atomic.Int32
	content []byte
	// behind, if it is set, handles the requests instead while the status is 200.
	behind http.Handler
}

func newServer(t *testing.T) *server {
	s := &server{}
	s.status.Store(http.StatusOK)
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	for s.status.Load() == withoutAnswer && request.Context().Err() == nil {
		time.Sleep(systemtest.PollInterval)
	}
	status := int(s.status.Load())
	switch {
	case status == withoutAnswer:
		// The client has stopped waiting.
	case status != http.StatusOK:
		response.Header().Set("Retry-After", "3")
		http.Error(response, http.StatusText(status), status)
	case s.behind != nil:
		s.behind.ServeHTTP(response, request)
	default:
		// The CLI needs the size of a plugin in advance.
		response.Header().Set("Content-Length", strconv.Itoa(len(s.content)))
		_, _ = response.Write(s.content)
	}
}

// serve makes the server of the patient respond with the status from now on.
func serve(status int) func(*recoveryFixture) {
	return func(p *recoveryFixture) { p.server.status.Store(int32(status)) }
}

// viaServer makes the Stack follow a git repository through the server of the patient.
func viaServer(p *recoveryFixture, s *pulumiv1.Stack) {
	repository, sha := p.repository(p.returning(1))
	address, err := url.Parse(repository.URL)
	p.Succeed(err)
	p.server.behind = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: address.Scheme, Host: address.Host})
	p.artifact = &meta.Artifact{Digest: sha}
	s.Spec = p.gitStack(p.server.URL + address.Path).Spec
	s.Spec.ResyncFrequencySeconds = 60
}

// gitRecoveries returns those with a git server that responds with an error.
func gitRecoveries() (recoveries []recovery) {
	for _, test := range []struct {
		name, reason string
		status       int
		within       time.Duration
	}{
		{"git-failing", pulumiv1.SourceUnavailableReason, http.StatusServiceUnavailable, soon},
		{"git-limiting", pulumiv1.RateLimitedReason, http.StatusTooManyRequests, 2 * polled},
		{"git-without-repository", pulumiv1.RepositoryNotFoundReason, http.StatusNotFound, soon},
		{"git-refusing", pulumiv1.AuthenticationFailedReason, http.StatusUnauthorized, 2 * polled},
	} {
		recoveries = append(recoveries, recovery{
			name: test.name, before: serve(test.status), change: viaServer,
			reasons: []string{test.reason}, says: "127.0.0.1",
			mend: serve(http.StatusOK), within: test.within,
		})
	}
	return recoveries
}

func sourceRecoveries() []recovery {
	content := func(p *recoveryFixture) []byte { return systemtest.Packed(p.returning(1)) }
	return []recovery{
		{
			name:    "artifact-missing",
			before:  func(p *recoveryFixture) { artifacts.Replace(p.artifact.Path, nil) },
			reasons: []string{pulumiv1.ArtifactFetchFailedReason}, says: "404",
			mend: func(p *recoveryFixture) { artifacts.Replace(p.artifact.Path, content(p)) }, within: polled,
		},
		{
			name:    "artifact-garbled",
			before:  func(p *recoveryFixture) { artifacts.Replace(p.artifact.Path, []byte("something else")) },
			reasons: []string{pulumiv1.ArtifactDigestMismatchReason}, says: "digest",
			mend: func(p *recoveryFixture) { artifacts.Replace(p.artifact.Path, content(p)) }, within: polled,
		},
	}
}

// object creates or replaces an object in the namespace of the patient.
func (p *recoveryFixture) object(object client.Object) {
	p.Helper()
	if err := system.Client.Create(p.Context(), object); err != nil {
		p.Expect(system.Client.Update(p.Context(), object)).To(Succeed())
	}
}

// region returns a function that writes the ConfigMap with the value.
func region(value string) func(*recoveryFixture) {
	return func(p *recoveryFixture) {
		p.object(&corev1.ConfigMap{ObjectMeta: p.Meta("settings"), Data: map[string]string{"region": value}})
	}
}

func usesRegion(_ *recoveryFixture, s *pulumiv1.Stack) {
	s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"region": {Name: "settings", Key: "region"}}
}

// phrase returns a function that writes the Secret with the passphrase of the Stack.
func phrase(value string, labels map[string]string) func(*recoveryFixture) {
	return func(p *recoveryFixture) {
		secret := p.Secret("phrase", map[string]string{localsystem.PassphraseKey: value})
		secret.Labels = labels
		p.object(secret)
	}
}

func usesPhrase(_ *recoveryFixture, s *pulumiv1.Stack) {
	s.Spec.EnvRefs["PULUMI_CONFIG_PASSPHRASE"] = localsystem.SecretRef("phrase", localsystem.PassphraseKey)
	usesPassword(s)
}

// push publishes another revision, which makes a Stack run.
func (p *recoveryFixture) push() {
	p.artifact = p.publish(p.returning(2))
}

func referenceRecoveries() []recovery {
	program := func(kind string) func(p *recoveryFixture) gitserver.Files {
		return func(p *recoveryFixture) gitserver.Files {
			return p.yaml("config:", "  region: {type: "+kind+"}", "outputs:", "  region: ${region}")
		}
	}
	return []recovery{
		{
			name: "config-missing", program: program("string"), change: usesRegion,
			reasons: []string{pulumiv1.SecretNotFoundReason}, says: `configmap "settings", which configuration key "region" needs`,
			mend: region("eu"), within: soon,
		},
		{
			name: "config-of-another-type", program: program("integer"), change: usesRegion, prepare: region("eu"),
			reasons: failures, cause: autov1alpha1.ConfigInvalidReason, says: "region",
			mend: region("12"), within: soon,
		},
		{
			name: "passphrase-unwatched", change: usesPhrase, prepare: phrase(passphraseCanary, nil),
			after: func(p *recoveryFixture) {
				phrase("another", nil)(p)
				p.push()
			},
			reasons: failures, cause: autov1alpha1.SecretsProviderFailedReason, says: "incorrect passphrase",
			mend: phrase(passphraseCanary, nil), within: soon,
		},
		{
			name: "passphrase-watched", change: func(p *recoveryFixture, s *pulumiv1.Stack) {
				usesPhrase(p, s)
				// Only the watch brings the Stack back.
				s.Spec.RetryInterval = &metav1.Duration{Duration: attemptInterval * 1000}
			},
			prepare: phrase(passphraseCanary, watched), after: phrase("another", watched),
			reasons: failures, cause: autov1alpha1.SecretsProviderFailedReason, says: "incorrect passphrase",
			mend: phrase(passphraseCanary, watched), within: soon,
		},
	}
}

// languageHost copies the language host of the tests into the directory of the pulumi CLI, once.
var languageHost = sync.OnceValue(func() error {
	return programs.Put(context.Background(), programs.LanguageHost, filepath.Join(filepath.Dir(pulumi.path()), programs.LanguageHost))
})

// requiring returns a program in the language of the tests. Its dependency comes from the server of the patient.
func requiring(p *recoveryFixture) gitserver.Files {
	p.Expect(languageHost()).To(Succeed())
	return gitserver.Files{
		"Pulumi.yaml":      "name: " + p.Name + "\nruntime: {name: outputs, options: {virtualenv: venv}}\n",
		"requirements.txt": p.server.URL + "/package\n",
		"outputs.json":     `{"x": 1}`,
	}
}

// plugged returns a program with a resource whose file is in the directory of the patient. The server of the patient serves the provider.
func plugged(p *recoveryFixture) gitserver.Files {
	home := p.TempDir()
	p.Expect(programs.PutProvider(p.Context(), home)).Error().NotTo(HaveOccurred())
	binary, err := os.ReadFile(filepath.Join(home, "plugins", "resource-test-v0.1.0", "pulumi-resource-test"))
	p.Succeed(err)
	p.server.content = systemtest.Tarball(systemtest.Entry{Header: tar.Header{
		Name: "pulumi-resource-test", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(binary)),
	}, Content: string(binary)})
	return p.yaml("resources:", "  file:", "    type: test:index:Sleep",
		"    properties: {seconds: 0, file: "+p.path("mount", "file")+", content: x}",
		"    options: {version: 0.1.0, pluginDownloadURL: '"+p.server.URL+"'}")
}

func (p *recoveryFixture) mount() { p.Expect(os.Mkdir(p.path("mount"), 0o700)).To(Succeed()) }

func pulumiRecoveries() []recovery {
	return []recovery{
		{
			name: "install", program: requiring, before: serve(http.StatusServiceUnavailable),
			reasons: failures, cause: autov1alpha1.InstallFailedReason, says: "503 Service Unavailable",
			mend: serve(http.StatusOK), within: soon,
		},
		{
			name: "plugin-missing", program: plugged, before: func(p *recoveryFixture) { p.mount(); serve(http.StatusNotFound)(p) },
			reasons: failures, cause: autov1alpha1.InstallFailedReason, says: "404",
			mend: serve(http.StatusOK), within: soon,
		},
		{
			name: "plugin-server-failing", program: plugged, before: func(p *recoveryFixture) { p.mount(); serve(http.StatusInternalServerError)(p) },
			reasons: failures, cause: autov1alpha1.InstallFailedReason, says: "500",
			mend: serve(http.StatusOK), within: soon,
		},
		{
			name: "drift", program: plugged, before: (*recoveryFixture).mount,
			change: func(_ *recoveryFixture, s *pulumiv1.Stack) {
				s.Spec.Refresh, s.Spec.ExpectNoRefreshChanges = true, true
			},
			after: func(p *recoveryFixture) {
				p.Expect(os.WriteFile(p.path("mount", "file"), []byte("another"), 0o600)).To(Succeed())
				program := plugged(p)
				program["README.md"] = "another revision"
				p.artifact = p.publish(program)
			},
			reasons: failures, cause: autov1alpha1.UnexpectedChangesReason, says: "expectNoRefreshChanges",
			mend: func(p *recoveryFixture) {
				p.Expect(os.WriteFile(p.path("mount", "file"), []byte("x"), 0o600)).To(Succeed())
			}, within: soon,
		},
		{
			name: "timeout", program: requiring, before: serve(withoutAnswer),
			change: func(_ *recoveryFixture, s *pulumiv1.Stack) {
				s.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second}
			},
			reasons: failures, cause: autov1alpha1.TimeoutReason, says: "the operation took longer than its timeout",
			mend: serve(http.StatusOK), within: soon,
		},
		{
			name: "language-missing", program: func(p *recoveryFixture) gitserver.Files {
				files := requiring(p)
				files["Pulumi.yaml"] = strings.Replace(files["Pulumi.yaml"], "outputs", "late", 1)
				return files
			},
			reasons: failures, cause: autov1alpha1.ProjectInvalidReason, says: "late",
			mend: func(p *recoveryFixture) {
				host := filepath.Join(filepath.Dir(pulumi.path()), "pulumi-language-")
				p.Expect(os.Link(host+"outputs", host+"late")).To(Succeed())
			},
			within: soon,
		},
		{
			name: "provider", program: plugged,
			reasons: failures, cause: autov1alpha1.UpdateFailedReason, says: "no such file or directory",
			mend: (*recoveryFixture).mount, within: soon,
		},
	}
}

// usesBackend gives the Stack its own backend, which does not exist unless the test creates it.
func usesBackend(p *recoveryFixture, s *pulumiv1.Stack) {
	s.Spec.Backend = "file://" + p.path("backend")
}

func backendRecoveries() []recovery {
	move := func(from, to string) func(*recoveryFixture) {
		return func(p *recoveryFixture) { p.Expect(os.Rename(p.path(from), p.path(to))).To(Succeed()) }
	}
	create := func(p *recoveryFixture) { p.Expect(os.Mkdir(p.path("backend"), 0o700)).To(Succeed()) }
	return []recovery{
		{
			name: "backend-missing", change: usesBackend,
			reasons: failures, cause: autov1alpha1.UpdateFailedReason, says: "no such file or directory",
			mend: create, within: soon,
		},
		{
			// Nobody, not even root, can create a directory where there is a file.
			name: "backend-unwritable", change: usesBackend, before: func(p *recoveryFixture) {
				p.Expect(os.MkdirAll(p.path("backend", ".pulumi"), 0o700)).To(Succeed())
				p.Expect(os.WriteFile(p.path("backend", ".pulumi", "stacks"), nil, 0o600)).To(Succeed())
			},
			reasons: failures, cause: autov1alpha1.UpdateFailedReason, says: "not a directory",
			mend: func(p *recoveryFixture) { p.Expect(os.Remove(p.path("backend", ".pulumi", "stacks"))).To(Succeed()) }, within: soon,
		},
		{
			name: "backend-not-mounted", change: usesBackend, before: create,
			after: func(p *recoveryFixture) {
				move("backend", "away")(p)
				p.push()
			},
			reasons: failures, cause: autov1alpha1.UpdateFailedReason, says: "no such file or directory",
			mend: move("away", "backend"), within: soon,
		},
		{
			name: "stack-missing", change: func(p *recoveryFixture, s *pulumiv1.Stack) {
				usesBackend(p, s)
				s.Spec.UseLocalStackOnly = true
			},
			before:  create,
			reasons: failures, cause: autov1alpha1.StackNotFoundReason, says: "dev",
			mend: func(p *recoveryFixture) {
				p.Pulumi(p.Name, map[string]string{"PULUMI_BACKEND_URL": "file://" + p.path("backend"), "PULUMI_CONFIG_PASSPHRASE": passphraseCanary},
					"stack", "init", "organization/"+p.Name+"/dev")
			},
			within: soon,
		},
	}
}
