package source

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

var _ manager.Runnable = &Git{}

func TestServerIsAskedOncePerIntervalHoweverManySubscribe(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for i := range 100 {
		_, err := d.resolve(fmt.Sprint(i))
		d.Expect(problemIn(d.WithT, err).Pending).To(BeTrue())
	}
	d.pollAll()
	d.Expect(d.questions()).To(Equal(1))
	d.Expect(d.notified()).To(HaveLen(100))
	for i := range 100 {
		d.Expect(d.commit(queryOf(fmt.Sprint(i), branch("main")))).To(Equal(firstSHA))
	}
	d.pass(10 * time.Minute)
	d.Expect(d.questions()).To(Equal(10))
	d.Expect(d.notified()).To(BeEmpty(), "nothing has changed")
}

func TestSubscribersAreNotifiedOfAnotherCommitOnce(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for _, name := range []string{"a", "b"} {
		_, _ = d.resolve(name)
	}
	d.pollAll()
	d.notified()
	d.servers.revision.SHA = secondSHA
	d.pass(time.Minute)
	d.Expect(d.notified()).To(Equal([]string{"a", "b"}))
	found, err := d.resolve("a")
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(found.Origin.Git).To(Equal(&autov1alpha1.GitSource{URL: testURL, Ref: secondSHA}))
	d.Expect(found.Digest).To(BeEmpty())
	d.Expect(found.Maker).NotTo(BeNil())
	d.Expect(found.Published).To(Equal(d.time.Now()))
	d.Expect(found.Origin.Commit).To(Equal(&autov1alpha1.CommitInfo{SHA: secondSHA, Ref: "refs/heads/main", Repository: testURL}))
	d.pass(10 * time.Minute)
	d.Expect(d.notified()).To(BeEmpty())
}

func TestReplicaThatIsBehindBringsNoReplacedCommitBack(t *testing.T) {
	const thirdSHA = "3333333333333333333333333333333333333333"
	d := newDriver(t, GitOptions{})
	follower, asking := queryOf("follower", branch("main")), queryOf("asking", branch("main"))
	for _, sha := range []string{firstSHA, secondSHA, thirdSHA} {
		d.servers.revision.SHA = sha
		for _, query := range []GitQuery{follower, asking} {
			query.Token = sha
			_, _ = d.stacks.Subscribe(query)
		}
		d.pollAll()
		d.Expect(d.commit(follower)).To(Equal(sha))
	}
	d.notified()
	for _, behind := range []string{firstSHA, secondSHA, firstSHA} {
		d.servers.revision.SHA = behind
		d.pass(time.Second)
		asking.Token = "of the webhook after " + d.time.Now().String()
		d.Expect(d.problem(asking).Pending).To(BeTrue())
		d.pollAll()
		d.Expect(d.problem(asking).Pending).To(BeTrue(), "what it asked for is not known yet")
		d.Expect(d.commit(follower)).To(Equal(thirdSHA))
		d.Expect(d.notified()).To(BeEmpty())
	}
	d.servers.revision.SHA = thirdSHA
	d.pass(10 * time.Second)
	d.Expect(d.notified()).To(Equal([]string{"asking"}))
	d.Expect(d.commit(asking)).To(Equal(thirdSHA))
	d.questions()
	d.pass(59 * time.Second)
	d.Expect(d.questions()).To(BeZero(), "nothing is in doubt any longer")
}

func TestTimeInWhichAServerFailsProvesNoReturn(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	first, second := git.Revision{SHA: firstSHA}, git.Revision{SHA: secondSHA}
	a := answer{revision: first}
	for _, round := range []struct {
		result pollResult
		want   git.Revision
	}{
		{pollResult{revision: second}, second},
		{pollResult{revision: first}, second},
		{pollResult{failure: &gitFailure{class: transientFailure}}, second},
		{pollResult{revision: first}, second},
	} {
		a, _ = a.after(round.result, now)
		g.Expect(a.revision).To(Equal(round.want))
		now = now.Add(settling)
	}
}

func TestBranchThatGoesBackIsFollowed(t *testing.T) {
	for _, test := range []struct {
		name           string
		after, latest  time.Duration
		rounds, failed int
	}{
		{"at once, once the commit is older", 3 * time.Minute, time.Minute, 1, 0},
		{"within a minute after the next poll otherwise", time.Second, 2 * time.Minute, 4, 0},
		{"later when the server fails meanwhile", time.Second, 2 * time.Minute, 6, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDriver(t, GitOptions{})
			query := queryOf("a", branch("main"))
			_, _ = d.stacks.Subscribe(query)
			d.pollAll()
			d.servers.revision.SHA = secondSHA
			d.pass(time.Minute)
			d.Expect(d.commit(query)).To(Equal(secondSHA))
			d.pass(test.after)
			d.notified()
			d.questions()
			back := d.time.Now()
			d.servers.revision.SHA = firstSHA
			d.servers.during = func() {
				if d.servers.err = nil; len(d.servers.asked) == test.failed {
					d.servers.err = gitError(git.Unreachable) // the next round
				}
			}
			d.pass(test.latest)
			d.Expect(d.notified()).To(Equal([]string{"a"}), "once")
			found, err := d.stacks.Subscribe(query)
			d.Expect(err).NotTo(HaveOccurred())
			d.Expect(found.Commit()).To(Equal(firstSHA))
			d.Expect(found.Published.Sub(back)).To(BeNumerically("<=", test.latest))
			rounds := 0
			for _, at := range d.servers.times {
				if !at.After(found.Published) {
					rounds++
				}
			}
			d.Expect(rounds).To(Equal(test.rounds))
		})
	}
}

func TestPollsSpreadByJitter(t *testing.T) {
	d := newDriver(t, GitOptions{Jitter: 0.5})
	for i := range 50 {
		_, _ = d.stacks.Subscribe(queryOf(fmt.Sprint(i), branch(fmt.Sprint("branch-", i))))
	}
	d.pollAll()
	d.questions()
	start := d.time.Now()
	d.pass(29 * time.Second)
	d.Expect(d.questions()).To(BeZero())
	d.pass(31 * time.Second)
	times := d.servers.times
	d.Expect(len(times)).To(And(BeNumerically(">", 5), BeNumerically("<", 45)), "about half of them were due")
	d.Expect(times[len(times)-1].Sub(start) - times[0].Sub(start)).To(BeNumerically(">", 10*time.Second))
}

func TestShortestIntervalOfTheSubscribersCounts(t *testing.T) {
	d := newDriver(t, GitOptions{})
	slow, fast := queryOf("slow", branch("main")), queryOf("fast", branch("main"))
	slow.Interval, fast.Interval = 10*time.Minute, time.Minute
	_, _ = d.stacks.Subscribe(slow)
	d.pass(2 * time.Minute)
	d.Expect(d.questions()).To(Equal(1))
	d.commit(fast)
	d.pass(0)
	d.Expect(d.questions()).To(Equal(1), "the answer is older than the new subscriber wants")
	d.pass(5 * time.Minute)
	d.Expect(d.questions()).To(Equal(5))
	d.stacks.Forget(fast.Waiter)
	d.pass(11 * time.Minute)
	d.Expect(d.questions()).To(Equal(2), "the poll that was planned, and the one after the long interval")
}

func TestFailureThatMayPassIsShownWhenItIsTheSecond(t *testing.T) {
	for _, kind := range []git.Kind{git.Timeout, git.Unreachable, git.Other, git.RateLimited} {
		t.Run(string(kind), func(t *testing.T) {
			d := newDriver(t, GitOptions{})
			query := queryOf("a", branch("main"))
			query.Interval = time.Hour
			_, _ = d.stacks.Subscribe(query)
			d.pollAll()
			d.notified()
			d.servers.err = gitError(kind)
			d.pass(time.Hour)
			d.Expect(d.notified()).To(BeEmpty())
			d.Expect(d.commit(query)).To(Equal(firstSHA))
			d.pass(time.Minute)
			d.Expect(d.notified()).To(Equal([]string{"a"}))
			problem := d.problem(query)
			d.Expect(problem.Message).To(HavePrefix("git.example apps/demo: " + string(kind)))
			d.Expect(problem.Watched).To(BeTrue())
			d.Expect(problem.Pending).To(BeFalse())

			d.pass(time.Hour)
			d.Expect(d.notified()).To(BeEmpty(), "it is still the same")
			d.servers.err = nil
			d.pass(10 * time.Minute)
			d.Expect(d.notified()).To(Equal([]string{"a"}))
			d.Expect(d.commit(query)).To(Equal(firstSHA))
		})
	}
}

func TestFirstFailureIsShownWhenNothingIsKnown(t *testing.T) {
	d := newDriver(t, GitOptions{})
	d.servers.err = errors.New(canary)
	_, _ = d.resolve("a")
	d.pollAll()
	d.Expect(d.notified()).To(Equal([]string{"a"}))
	problem := d.problem(queryOf("a", branch("main")))
	d.Expect(problem.Reason).To(Equal("SourceUnavailable"))
	d.Expect(problem.Message).NotTo(ContainSubstring(canary), "nobody vouches for the text of such an error")
}

func TestFailuresAreTriedAgainLessAndLessOften(t *testing.T) {
	for _, test := range []struct {
		kind     git.Kind
		after    time.Duration
		interval time.Duration
		waits    []int // seconds
	}{
		{git.Unreachable, 0, time.Minute, []int{10, 20, 40, 60, 60}},
		{git.Timeout, 0, time.Hour, []int{10, 20, 40, 80, 160, 300, 300}},
		{git.RevisionNotFound, 0, time.Minute, []int{10, 20, 40, 60}},
		{git.RepositoryNotFound, 0, time.Minute, []int{10, 20, 40, 60}},
		{git.AuthenticationFailed, 0, time.Minute, []int{60, 60}},
		{git.HostKeyUnknown, 0, time.Hour, []int{300, 300}},
		{git.RateLimited, 0, time.Minute, []int{60, 60}},
		{git.RateLimited, 7 * time.Minute, time.Minute, []int{420, 420}},
		{git.RateLimited, 48 * time.Hour, time.Minute, []int{3600, 3600}},
		{git.InvalidURL, 0, time.Minute, nil},
	} {
		t.Run(fmt.Sprint(test.kind, test.after, test.interval), func(t *testing.T) {
			d := newDriver(t, GitOptions{})
			failure := gitError(test.kind)
			failure.RetryAfter = test.after
			d.servers.err = failure
			query := queryOf("a", branch("main"))
			query.Interval = test.interval
			_, _ = d.stacks.Subscribe(query)
			d.pollAll()
			last := d.servers.times[0]
			for _, wait := range test.waits {
				d.questions()
				d.pass(time.Duration(wait) * time.Second)
				d.Expect(d.servers.times).To(HaveLen(1))
				d.Expect(d.servers.times[0].Sub(last)).To(Equal(time.Duration(wait) * time.Second))
				last = d.servers.times[0]
			}
			if test.waits == nil {
				d.pass(time.Hour)
				d.Expect(d.questions()).To(Equal(1))
			}
		})
	}
}

func TestAnswerThatSomebodyHasToActOnIsShownAtOnce(t *testing.T) {
	for kind, reason := range map[git.Kind]string{
		git.AuthenticationFailed: "AuthenticationFailed",
		git.InvalidCredentials:   "AuthenticationFailed",
		git.HostKeyUnknown:       "HostKeyUnknown",
		git.RepositoryNotFound:   "RepositoryNotFound",
		git.RevisionNotFound:     "RevisionNotFound",
		git.LFSPointers:          "LFSPointers",
		git.CertificateInvalid:   "SourceUnavailable",
		git.InvalidURL:           "SpecInvalid",
	} {
		t.Run(string(kind), func(t *testing.T) {
			d := newDriver(t, GitOptions{})
			_, _ = d.resolve("a")
			d.pollAll()
			d.notified()
			d.servers.err = gitError(kind)
			d.pass(time.Minute)
			d.Expect(d.notified()).To(Equal([]string{"a"}))
			problem := d.problem(queryOf("a", branch("main")))
			d.Expect(problem.Reason).To(Equal(reason))
			d.Expect(problem.Message).To(MatchRegexp("^git.example apps/demo: "+string(kind)+": .{8}"), "it says what to do")
			d.Expect(problem.Watched).To(BeTrue())
			d.Expect(problem.Permanent).To(Equal(kind == git.InvalidURL))
		})
	}
}

func TestNewTokenThatIsRefusedDoesNotHideWhatIsKnown(t *testing.T) {
	refused := unavailable("the token is new")
	refused.newToken = true
	for _, kind := range []git.Kind{git.AuthenticationFailed, git.RepositoryNotFound} {
		t.Run(string(kind), func(t *testing.T) {
			d := newDriver(t, GitOptions{})
			query := queryOf("a", branch("main"))
			_, _ = d.stacks.Subscribe(query)
			d.pollAll()
			d.servers.err = gitError(kind)
			d.pass(time.Minute)
			known := d.problem(query)
			d.Expect(known.Message).To(ContainSubstring(string(kind)))
			d.notified()
			for range 3 {
				d.servers.err = refused
				d.pass(5 * time.Minute)
				d.Expect(d.questions()).To(BeNumerically(">", 3))
				d.Expect(d.problem(query)).To(Equal(known))
				d.servers.err = gitError(kind)
				d.pass(time.Minute)
			}
			d.Expect(d.notified()).To(BeEmpty())
			d.servers.err = nil
			d.pass(time.Minute)
			d.Expect(d.commit(query)).To(Equal(firstSHA))
			d.notified()
			d.servers.err = refused
			d.pass(2 * time.Minute)
			d.Expect(d.problem(query).Reason).To(Equal("SourceUnavailable"), "nothing else is known")
		})
	}
}

func TestCommitIsNeverPolled(t *testing.T) {
	d := newDriver(t, GitOptions{})
	d.Expect(d.problem(queryOf("a", branch("main"))).Pending).To(BeTrue())
	d.Expect(d.commit(queryOf("a", branch("ABCDEF1111111111111111111111111111111111")))).To(Equal("abcdef1111111111111111111111111111111111"))
	d.pass(time.Hour)
	d.Expect(d.questions()).To(BeZero(), "nobody is subscribed to the branch any longer")
	d.Expect(d.polls).To(BeEmpty())
	d.Expect(d.subscriptions).To(BeEmpty())
}

func TestBranchIsNeverTakenForAHash(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for _, name := range []string{"1111111", firstSHA} {
		stack := &pulumiv1.Stack{Namespace: "team", Name: "app"}
		stack.Spec.ProjectRepo, stack.Spec.Branch = testURL, name
		_, err := d.stacks.Resolve(t.Context(), stack, false)
		d.Expect(problemIn(d.WithT, err).Pending).To(BeTrue())
		d.pollAll()
		d.Expect(d.servers.names).To(ContainElement(name))
		stack.Spec.Branch, stack.Spec.Commit = "", name
		_, _ = d.stacks.Resolve(t.Context(), stack, false)
		d.servers.names = nil
		d.pollAll()
		d.Expect(d.servers.names).To(BeEmpty())
	}
}

func TestPartOfAHashIsPolledOnce(t *testing.T) {
	d := newDriver(t, GitOptions{})
	d.servers.revision = git.Revision{SHA: firstSHA}
	query := queryOf("a", branch("1111111"))
	_, _ = d.stacks.Subscribe(query)
	d.pass(50 * time.Minute)
	d.Expect(d.commit(query)).To(Equal(firstSHA))
	d.Expect(d.questions()).To(Equal(1))
	query.Token = "now"
	d.Expect(d.problem(query).Pending).To(BeTrue())
	d.pollAll()
	d.Expect(d.questions()).To(Equal(1))
	d.pass(3 * time.Hour)
	d.Expect(d.polls).To(BeEmpty(), "it is forgotten like any other")
}

func TestPollEndsWithItsLastSubscription(t *testing.T) {
	d := newDriver(t, GitOptions{}, secretOf("git", map[string]string{"accessToken": canary}))
	source := branch("main")
	source.Auth = &autov1alpha1.GitAuth{SecretRef: &meta.LocalObjectReference{Name: "git"}}
	a, b := queryOf("a", source), queryOf("b", source)
	for _, query := range []GitQuery{a, b} {
		_, _ = d.stacks.Subscribe(query)
	}
	d.pollAll()
	d.stacks.Forget(a.Waiter)
	d.stacks.Forget(a.Waiter)
	d.questions()
	d.pass(time.Minute)
	d.Expect(d.questions()).To(Equal(1))
	// The last one leaves while the server is asked.
	d.servers.during = func() { d.stacks.Forget(b.Waiter) }
	d.pass(time.Minute)
	d.pass(time.Hour)
	d.Expect(d.questions()).To(Equal(1))
	d.Expect(d.polls).To(BeEmpty())
	d.Expect(d.readers).To(BeEmpty())
	d.Expect(d.queue.running).To(BeEmpty())
	d.Expect(d.queue.total).To(BeZero())
}

func TestSubscriberThatIsSilentIsAskedAndThenForgotten(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for _, name := range []string{"alive", "gone"} {
		_, _ = d.resolve(name)
	}
	d.pass(59 * time.Minute)
	d.Expect(d.notified()).To(HaveLen(2), "of the first answer")
	d.pass(2 * time.Minute)
	d.Expect(d.notified()).To(Equal([]string{"alive", "gone"}))
	d.commit(queryOf("alive", branch("main")))
	d.pass(20 * time.Minute)
	d.Expect(d.notified()).To(BeEmpty())
	d.Expect(d.subscriptions).To(HaveLen(1))
	d.pass(2 * time.Hour)
	d.Expect(d.polls).To(BeEmpty())
}

func TestNamespacesShareOnlyPollsOfWhatEverybodyMayRead(t *testing.T) {
	data := map[string]string{"accessToken": canary}
	other := secretOf("git", data)
	other.Namespace = "other"
	d := newDriver(t, GitOptions{}, secretOf("git", data), other)
	private := branch("main")
	private.Auth = &autov1alpha1.GitAuth{SecretRef: &meta.LocalObjectReference{Name: "git"}}
	artifacts := map[string]string{}
	for _, source := range []*autov1alpha1.GitSource{branch("main"), private} {
		for _, namespace := range []string{"team", "other"} {
			query := queryOf(fmt.Sprint(source.Auth != nil), source)
			query.Waiter = types.NamespacedName{Namespace: namespace, Name: query.Waiter.Name}
			_, _ = d.stacks.Subscribe(query)
			d.pollAll()
			found, err := d.stacks.Subscribe(query)
			d.Expect(err).NotTo(HaveOccurred())
			artifacts[found.Maker.Key()] = query.Waiter.String()
			d.Expect(found.Maker.Key()).NotTo(ContainSubstring(canary))
		}
	}
	d.Expect(d.questions()).To(Equal(3))
	d.Expect(artifacts).To(HaveLen(4), "each namespace has its own checkouts")
}

func TestPanicOfAPollIsAProblemLikeAnother(t *testing.T) {
	d := newDriver(t, GitOptions{})
	d.servers.during = func() { panic(canary) }
	_, _ = d.resolve("a")
	d.pollAll()
	problem := d.problem(queryOf("a", branch("main")))
	d.Expect(problem.Reason).To(Equal("SourceUnavailable"))
	d.Expect(problem.Message).NotTo(ContainSubstring(canary))
	d.servers.during = nil
	d.pass(10 * time.Second)
	d.Expect(d.commit(queryOf("a", branch("main")))).To(Equal(firstSHA))
}
