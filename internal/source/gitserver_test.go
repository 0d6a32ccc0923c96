package source

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// patience is how long tests wait for what takes milliseconds on a quiet machine.
const patience = 30 * time.Second

// gitFixture is a real git server behind a proxy that counts the requests, and a running Git.
type gitFixture struct {
	*WithT
	t          *testing.T
	dir        string
	origin     *gitserver.Server
	repository *gitserver.Repository
	first      string // commit
	front      *httptest.Server
	// lists counts the requests for refs, packs those for commits.
	lists, packs atomic.Int32
	// gate keeps the server from answering while it is locked.
	gate sync.RWMutex
	// answer replaces the answers of the server while it is set.
	answer atomic.Pointer[http.HandlerFunc]
	client client.Client

	git    *Git
	stacks *GitSubscriber
}

func newGitFixture(t *testing.T) *gitFixture {
	t.Helper()
	s := &gitFixture{WithT: NewWithT(t), t: t, dir: t.TempDir(), client: fake.NewClientBuilder().Build()}
	s.SetDefaultEventuallyTimeout(patience)
	var err error
	s.origin, err = gitserver.Start(s.dir)
	s.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(s.origin.Stop)
	s.repository, s.first, err = s.origin.Create("demo", gitserver.Files{"Pulumi.yaml": "name: demo\n"})
	s.Expect(err).NotTo(HaveOccurred())
	behind, err := url.Parse(s.origin.URL(""))
	s.Expect(err).NotTo(HaveOccurred())
	proxy := httputil.NewSingleHostReverseProxy(behind)
	s.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/info/refs") {
			s.lists.Add(1)
		}
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			s.packs.Add(1)
		}
		s.gate.RLock()
		s.gate.RUnlock() //nolint:staticcheck // it only waits
		if answer := s.answer.Load(); answer != nil {
			(*answer)(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.front.Close)
	s.restart()
	return s
}

// restart runs a new Git without the state of the one before.
func (s *gitFixture) restart() {
	s.git = NewGit(GitOptions{APIReader: s.client, AllowLocalAddresses: true, Timeout: 5 * time.Second, Dir: s.t.TempDir()})
	s.stacks = s.git.NewSubscriber()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.git.Start(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		s.Expect(<-ended).To(Succeed())
	})
}

func (s *gitFixture) answerWith(answer http.HandlerFunc) {
	if answer == nil {
		s.answer.Store(nil)
		return
	}
	s.answer.Store(&answer)
}

// query subscribes to the branch main with a short interval.
func (s *gitFixture) query(name string) GitQuery {
	return GitQuery{
		Waiter:   types.NamespacedName{Namespace: "team", Name: name},
		Source:   &autov1alpha1.GitSource{URL: s.front.URL + "/demo", Ref: gitserver.Branch},
		Interval: time.Second,
	}
}

// next waits for the event of a waiter, and asks again.
func (s *gitFixture) next(query GitQuery) (*Artifact, error) {
	s.t.Helper()
	var got event.GenericEvent
	s.Eventually(s.stacks.Events()).Should(Receive(&got))
	s.Expect(got.Object.GetName()).To(Equal(query.Waiter.Name))
	return s.stacks.Subscribe(query)
}

// subscribe asks for the first time.
func (s *gitFixture) subscribe(query GitQuery) (*Artifact, error) {
	s.t.Helper()
	_, err := s.stacks.Subscribe(query)
	s.Expect(problemIn(s.WithT, err).Pending).To(BeTrue())
	return s.next(query)
}

func (s *gitFixture) commits(found *Artifact, err error) string {
	s.t.Helper()
	s.Expect(err).NotTo(HaveOccurred())
	return found.Commit()
}

func (s *gitFixture) reasonOf(_ *Artifact, err error) string {
	s.t.Helper()
	return problemIn(s.WithT, err).Reason
}

// onServer runs git in the directory of the repository on the server, and returns what it prints.
func (s *gitFixture) onServer(args ...string) string {
	s.t.Helper()
	command := exec.Command("git", args...)
	command.Dir = filepath.Join(s.dir, "demo")
	output, err := command.CombinedOutput()
	s.Expect(err).NotTo(HaveOccurred(), string(output))
	return strings.TrimSpace(string(output))
}

func (s *gitFixture) change(name, content string) string {
	s.t.Helper()
	sha, err := s.repository.Commit(gitserver.Files{name: content})
	s.Expect(err).NotTo(HaveOccurred())
	return sha
}

func TestServerReportsOneCheckoutPerCommit(t *testing.T) {
	s := newGitFixture(t)
	found, err := s.subscribe(s.query("a"))
	s.Expect(s.commits(found, err)).To(Equal(s.first))
	s.stacks.Forget(s.query("a").Waiter) // so that only checkouts are counted
	store, err := artifact.NewStore(artifact.Options{Dir: t.TempDir()})
	s.Expect(err).NotTo(HaveOccurred())
	s.Eventually(func() bool { s.git.mu.Lock(); defer s.git.mu.Unlock(); return s.git.queue.total == 0 }).Should(BeTrue())
	before := s.packs.Load()
	s.Expect(store.Fetch(t.Context(), found.Reference)).To(Succeed())
	once := s.packs.Load() - before
	s.Expect(once).To(BeNumerically(">", 0))
	failed := make(chan error)
	another, err := artifact.NewStore(artifact.Options{Dir: t.TempDir()})
	s.Expect(err).NotTo(HaveOccurred())
	before = s.packs.Load()
	for range 100 {
		go func() { failed <- another.Fetch(t.Context(), found.Reference) }()
	}
	for range 100 {
		s.Expect(<-failed).To(Succeed())
	}
	s.Expect(s.packs.Load() - before).To(Equal(once))
	s.Expect(another.Stored(found.Reference)).To(Equal(store.Stored(found.Reference)), "the artifact is reproducible")
	described, err := s.subscribe(s.query("b"))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(described.Origin.Commit).To(And(HaveField("Author", "Demo"), HaveField("Message", Not(BeEmpty()))), "as the checkout tells")
}

func TestSubscriberSeesWhatHappensToItsBranch(t *testing.T) {
	s := newGitFixture(t)
	query := s.query("a")
	s.Expect(s.commits(s.subscribe(query))).To(Equal(s.first))
	second := s.change("more", "content")
	found, err := s.next(query)
	s.Expect(s.commits(found, err)).To(Equal(second))
	s.Expect(found.Revision).To(Equal("main@sha1:" + second))

	instead := s.onServer("-c", "user.name=Demo", "-c", "user.email=demo@example.com", "commit-tree", "-p", s.first, "-m", "instead", second+"^{tree}")
	s.onServer("update-ref", "refs/heads/main", instead)
	s.Expect(s.commits(s.next(query))).To(Equal(instead), "after a force push")

	s.onServer("update-ref", "-d", "refs/heads/main")
	s.Expect(s.reasonOf(s.next(query))).To(Equal("RevisionNotFound"))
	s.onServer("update-ref", "refs/heads/main", instead)
	s.Expect(s.commits(s.next(query))).To(Equal(instead), "the branch is there again")

	path := filepath.Join(s.dir, "demo")
	s.Expect(os.Rename(path, path+".gone")).To(Succeed())
	s.Expect(s.reasonOf(s.next(query))).To(Equal("RepositoryNotFound"))
	s.Expect(os.Rename(path+".gone", path)).To(Succeed())
	s.Expect(s.commits(s.next(query))).To(Equal(instead), "the repository is there again")
}

func TestSubscriberSeesWhatHappensToItsServer(t *testing.T) {
	s := newGitFixture(t)
	query := s.query("a")
	s.Expect(s.commits(s.subscribe(query))).To(Equal(s.first))

	s.answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	s.Expect(s.reasonOf(s.next(query))).To(Equal("SourceUnavailable"))
	s.answerWith(nil)
	s.Expect(s.commits(s.next(query))).To(Equal(s.first))

	// A waiter that has a commit gets the error after the second refusal, a minute later. A waiter that asks for the first time gets it at
	// once.
	s.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	s.stacks.Forget(query.Waiter)
	s.Expect(s.reasonOf(s.subscribe(query))).To(Equal("RateLimited"))
	asked := s.lists.Load()
	s.Consistently(s.lists.Load, "3s", "100ms").Should(Equal(asked), "the server is left alone")
}

func TestNewGitKnowsNothingAndAsksOnce(t *testing.T) {
	s := newGitFixture(t)
	query := s.query("a")
	query.Interval = time.Hour
	s.Expect(s.commits(s.subscribe(query))).To(Equal(s.first))
	second := s.change("more", "content")
	s.restart()
	asked := s.lists.Load()
	s.Expect(s.commits(s.subscribe(query))).To(Equal(second))
	s.Expect(s.lists.Load() - asked).To(BeEquivalentTo(1))
}

// wants makes the server require the user and the password.
func (s *gitFixture) wants(username, password string) {
	behind, err := url.Parse(s.origin.URL(""))
	s.Expect(err).NotTo(HaveOccurred())
	proxy := httputil.NewSingleHostReverseProxy(behind)
	s.answerWith(func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); user != username || pass != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

func TestCredentialsThatArriveBreakAndAreRenewedAreNoticed(t *testing.T) {
	s := newGitFixture(t)
	s.wants("user", canary+"-1")
	query := s.query("a")
	query.Source.Auth = &autov1alpha1.GitAuth{SecretRef: secretRef("git")}
	// The controller looks for a missing Secret again and again.
	s.Expect(s.reasonOf(s.subscribe(query))).To(Equal("SecretNotFound"))
	s.Expect(s.lists.Load()).To(BeZero(), "no server is asked without credentials")
	secret := secretOf("git", map[string]string{"username": "user", "password": canary + "-1"})
	s.Expect(s.client.Create(t.Context(), secret)).To(Succeed())
	found, err := s.next(query)
	s.Expect(s.commits(found, err)).To(Equal(s.first))
	s.Expect(s.reading(found)).To(Succeed())

	// The server wants another password: the polls notice, without an edit.
	s.wants("user", canary+"-2")
	_, err = s.next(query)
	problem := problemIn(s.WithT, err)
	s.Expect(problem.Reason).To(Equal("AuthenticationFailed"))
	s.Expect(problem.Message).To(ContainSubstring(`Secret "git"`))
	s.Expect(problem.Message).NotTo(ContainSubstring(canary))
	failure := s.reading(found)
	s.Expect(problemIn(s.WithT, failure).Reason).To(Equal("AuthenticationFailed"), "a checkout says the same")
	s.Expect(failure.Error()).NotTo(ContainSubstring(canary))

	secret.Data["password"] = []byte(canary + "-2")
	s.Expect(s.client.Update(t.Context(), secret)).To(Succeed())
	renewed, err := s.next(query)
	s.Expect(s.commits(renewed, err)).To(Equal(s.first))
	s.Expect(renewed.Maker.Key()).To(Equal(found.Maker.Key()), "another password is no other commit")
	s.Expect(s.reading(renewed)).To(Succeed())

	s.Expect(s.client.Delete(t.Context(), secret)).To(Succeed())
	s.Expect(s.reasonOf(s.next(query))).To(Equal("SecretNotFound"))
}

// reading fetches the artifact into a store of its own.
func (s *gitFixture) reading(found *Artifact) error {
	s.t.Helper()
	store, err := artifact.NewStore(artifact.Options{Dir: s.t.TempDir()})
	s.Expect(err).NotTo(HaveOccurred())
	return store.Fetch(s.t.Context(), found.Reference)
}
