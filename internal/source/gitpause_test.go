package source

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

func TestServerThatWantsFewerRequestsIsLeftAloneForAllRefsAndRepositories(t *testing.T) {
	d := newDriver(t, GitOptions{})
	d.concurrent = 1
	limited := gitError(git.RateLimited)
	limited.RetryAfter = 10 * time.Minute
	d.servers.err = limited
	other := branch("main")
	other.URL = "https://git.example/apps/other"
	elsewhere := branch("main")
	elsewhere.URL = "https://elsewhere.example/apps/demo"
	for i, source := range []*autov1alpha1.GitSource{branch("main"), branch("next"), other} {
		_, _ = d.stacks.Subscribe(queryOf(fmt.Sprint(i), source))
	}
	d.pollAll()
	d.Expect(d.questions()).To(Equal(1))
	problem := d.problem(queryOf("2", other))
	d.Expect(problem.Reason).To(Equal("RateLimited"))
	d.Expect(problem.Message).To(And(ContainSubstring("apps/other"), Not(ContainSubstring("apps/demo"))), "nobody reads the name of another repository")
	_, _ = d.stacks.Subscribe(queryOf("elsewhere", elsewhere))
	d.pollAll()
	d.Expect(d.questions()).To(Equal(1), "another server")
	d.servers.err = nil
	d.pass(9 * time.Minute)
	d.Expect(d.questions()).To(BeZero())
	d.pass(2 * time.Minute)
	d.Expect(d.commit(queryOf("1", branch("next")))).To(Equal(firstSHA))
}

// ofCommit is a Stack that names the first commit by its hash, which is never polled.
func (s *gitFixture) ofCommit() *Artifact {
	s.t.Helper()
	query := s.query("a")
	query.Source.Ref = s.first
	found, err := s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred())
	return found
}

func TestCheckoutsLeaveAServerAloneForTheTimeThatItAsksFor(t *testing.T) {
	for status, reason := range map[int]string{http.StatusTooManyRequests: "RateLimited", http.StatusServiceUnavailable: "SourceUnavailable"} {
		s := newGitFixture(t)
		s.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(status)
		})
		found := s.ofCommit()
		first := problemIn(s.WithT, s.reading(found))
		s.Expect(first.Reason).To(Equal(reason))
		asked := s.lists.Load() + s.packs.Load()
		for range 5 {
			s.Expect(problemIn(s.WithT, s.reading(found))).To(Equal(first), "the status does not change meanwhile")
		}
		s.Expect(s.lists.Load() + s.packs.Load()).To(Equal(asked))
	}
}

func TestCheckoutWithANewTokenThatIsRefusedGoesOnToSayWhatIsKnown(t *testing.T) {
	g, clock := NewWithT(t), clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	p, remote, repo := newPauses(clock), git.Remote{URL: testURL}, gitRepository{url: testURL}
	reason := func() string {
		if failure := p.ofCheckout(remote, repo); failure != nil {
			return failure.Reason
		}
		return ""
	}
	refused := unavailable("the token is new")
	refused.newToken = true
	p.record(remote, refused, refused)
	g.Expect(reason()).To(BeEmpty(), "nothing is known")
	err := gitError(git.AuthenticationFailed)
	p.record(remote, gitFailureOf(err, repo), err)
	p.record(remote, refused, refused)
	clock.Step(maxRetry - time.Second)
	g.Expect(reason()).To(Equal("AuthenticationFailed"), "the pause is not shorter either")
	clock.Step(time.Second)
	for range 6 {
		g.Expect(reason()).To(BeEmpty(), "it is tried again")
		p.record(remote, refused, refused)
		g.Expect(reason()).To(Equal("AuthenticationFailed"))
		clock.Step(firstRetry)
	}
	clock.Step(maxRetry)
	p.record(remote, refused, refused)
	g.Expect(reason()).To(BeEmpty(), "that was long ago")
}

func TestPausedCheckoutNamesTheSecretOfItsOwnNamespace(t *testing.T) {
	g, p, remote := NewWithT(t), newPauses(clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))), git.Remote{URL: testURL}
	repo := func(namespace, secret string) gitRepository {
		return gitRepository{namespace: namespace, url: testURL, auth: &autov1alpha1.GitAuth{SecretRef: secretRef(secret)}}
	}
	err := gitError(git.AuthenticationFailed)
	p.record(remote, gitFailureOf(err, repo("a", "of-a")), err)
	g.Expect(p.ofCheckout(remote, repo("b", "of-b")).Message).To(And(ContainSubstring(`Secret "of-b"`), Not(ContainSubstring("of-a"))))
}

func TestCheckoutsDoNotRepeatCredentialsThatWereRefused(t *testing.T) {
	s := newGitFixture(t)
	s.wants("user", canary)
	secret := secretOf("git", map[string]string{"username": "user", "password": "wrong"})
	s.Expect(s.client.Create(t.Context(), secret)).To(Succeed())
	query := s.query("a")
	query.Source.Ref, query.Source.Auth = s.first, &autov1alpha1.GitAuth{SecretRef: secretRef("git")}
	found, err := s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred())
	first := s.reading(found)
	s.Expect(problemIn(s.WithT, first).Reason).To(Equal("AuthenticationFailed"))
	asked := s.lists.Load() + s.packs.Load()
	for range 5 {
		again := s.reading(found)
		s.Expect(problemIn(s.WithT, again)).To(Equal(problemIn(s.WithT, first)))
		_, kind := FetchReason(again)
		s.Expect(kind).To(Equal(artifact.Unavailable))
	}
	s.Expect(s.lists.Load() + s.packs.Load()).To(Equal(asked))

	secret.Data["password"] = []byte(canary)
	s.Expect(s.client.Update(t.Context(), secret)).To(Succeed())
	s.Expect(s.reading(found)).To(Succeed(), "other credentials are tried at once")
}
