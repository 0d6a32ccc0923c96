package source

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

func TestTokenAsksForAPollThatBeginsLater(t *testing.T) {
	d := newDriver(t, GitOptions{})
	query := queryOf("a", branch("main"))
	_, _ = d.stacks.Subscribe(query)
	// The first poll is running when the token comes. It may have missed a commit that was pushed before the token.
	d.servers.during = func() {
		d.servers.during = nil
		d.servers.revision.SHA = secondSHA
		query.Token = "now"
		d.Expect(d.problem(query).Pending).To(BeTrue())
		begun, _ := d.begin()
		d.Expect(begun).To(BeEmpty())
	}
	d.pollAll()
	d.Expect(d.questions()).To(Equal(2))
	d.Expect(d.notified()).To(Equal([]string{"a"}))
	d.Expect(d.commit(query)).To(Equal(secondSHA))

	d.pass(0)
	d.Expect(d.questions()).To(BeZero(), "the same token again asks for nothing")
	query.Token = "later"
	d.Expect(d.problem(query).Pending).To(BeTrue())
	d.Expect(d.commit(queryOf("b", branch("main")))).To(Equal(secondSHA), "others are not concerned")
	d.pollAll()
	d.Expect(d.notified()).To(Equal([]string{"a"}), "it is notified although nothing has changed")
	d.Expect(d.commit(query)).To(Equal(secondSHA))
}

func TestTokenIsNotAnsweredWithWhatAFailureLeavesOld(t *testing.T) {
	d := newDriver(t, GitOptions{})
	query := queryOf("a", branch("main"))
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	d.notified()
	d.servers.err = gitError(git.Timeout)
	query.Token = "now"
	d.Expect(d.problem(query).Pending).To(BeTrue())
	d.pollAll()
	d.Expect(d.problem(query).Pending).To(BeTrue())
	d.pass(10 * time.Second)
	d.Expect(d.notified()).To(Equal([]string{"a"}))
	d.Expect(d.problem(query).Pending).To(BeFalse())
}

func TestServerThatIsLeftAloneIsNotAskedForAToken(t *testing.T) {
	d := newDriver(t, GitOptions{Jitter: 0.1})
	query := queryOf("a", branch("main"))
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	limited := gitError(git.RateLimited)
	limited.RetryAfter = 10 * time.Minute
	d.servers.err = limited
	query.Token = "one"
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	d.questions()
	d.Expect(d.notified()).To(Equal([]string{"a"}))
	d.Expect(d.problem(query).Reason).To(Equal("RateLimited"), "who asked is told why nothing happens")
	query.Token = "two"
	d.Expect(d.problem(query).Reason).To(Equal("RateLimited"))
	d.servers.err = nil
	d.pass(10*time.Minute - time.Second)
	d.Expect(d.questions()).To(BeZero())
	d.pass(time.Minute + time.Second)
	d.Expect(d.notified()).To(Equal([]string{"a"}))
	d.Expect(d.commit(query)).To(Equal(firstSHA))
}

func TestDoubtfulAnswerIsPolledAgainSoonButNotForEver(t *testing.T) {
	d := newDriver(t, GitOptions{})
	query := queryOf("a", branch("main"))
	_, _ = d.stacks.Subscribe(query)
	d.pollAll()
	d.notified()
	d.questions()
	for range 5 {
		found, err := d.stacks.Subscribe(query)
		d.pollSoon(subscriptionKey{d.stacks, query.Waiter})
		d.Expect(err).NotTo(HaveOccurred())
		d.Expect(found.Commit()).To(Equal(firstSHA))
		d.pass(time.Second)
	}
	d.Expect(d.questions()).To(BeZero())
	d.pass(5 * time.Second)
	d.Expect(d.questions()).To(Equal(1))
	d.Expect(d.notified()).To(BeEmpty(), "the answer is the same")
}

func TestRequestDoesNotAskALimitedServerEarlyWhenASecretIsLookedAt(t *testing.T) {
	d := newDriver(t, GitOptions{}, secretOf("git", map[string]string{"accessToken": "one"}))
	query := queryOf("a", withSecret())
	limited := gitError(git.RateLimited)
	limited.RetryAfter = 10 * time.Minute
	d.servers.err = limited
	_, _ = d.stacks.Subscribe(query)
	d.pass(time.Minute)
	d.Expect(d.questions()).To(Equal(1))
	d.secretChanged("team")
	query.Token = "now"
	_, _ = d.stacks.Subscribe(query)
	d.pass(time.Minute)
	d.Expect(d.questions()).To(BeZero(), "the Secret is as it was")
	d.pass(10 * time.Minute)
	d.Expect(d.questions()).To(Equal(1))
}
