package rollout

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// TestRevisionThatNobodyHasIsNotStable: new Stacks would all begin with it at once, without waves and promotions.
func TestRevisionThatNobodyHasIsNotStable(t *testing.T) {
	for name, change := range map[string]func(*fleet){
		"there are no Stacks": func(f *fleet) {
			f.stacks, f.rollout.Status = nil, autov1alpha1.StackRolloutStatus{}
		},
		"all are suspended": func(f *fleet) {
			for _, stack := range f.stacks {
				stack.Spec.Suspend = true
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual
			change(f)
			f.offers("b")
			f.Expect(f.last.complete).To(BeTrue())
			f.Expect(f.rollout.Status.Stable).To(Or(BeNil(), HaveValue(Equal(revision("a")))))
			f.Expect(f.events).To(Equal([]string{eventStarted}), "nothing is known about it")
			canary, other := f.add("canary", true), f.add("other", false)
			canary.Status, other.Status = pulumiv1.StackStatus{}, pulumiv1.StackStatus{}
			f.decide()
			f.Expect(f.turns()).To(ConsistOf(canary))
			f.Expect(waves.Release(other, f.rollout, *f.offer, f.offer.Digest, nil).Released).To(BeFalse())
			f.ends(canary, "b")
			f.Expect(f.decide().reason).To(Equal(autov1alpha1.PromotionRequiredReason))
			f.approve(autov1alpha1.ApprovalApprove, "rest", "b")
			f.decide()
			f.finish("b")
			f.Expect(f.rollout.Status.Stable).To(HaveValue(Equal(revision("b"))))
			f.Expect(f.events[len(f.events)-1]).To(Equal(autov1alpha1.RolloutCompleteReason))
		})
	}
}

// TestRejectionCountsWhateverElseIsWrong: a new Stack would begin with what was rejected, while somebody mends the StackRollout.
func TestRejectionCountsWhateverElseIsWrong(t *testing.T) {
	for reason, spoil := range map[string]func(*autov1alpha1.StackRolloutSpec){
		pulumiv1.InvalidCELExpressionReason: func(spec *autov1alpha1.StackRolloutSpec) { spec.Waves[0].Check = "no such thing" },
		pulumiv1.SpecInvalidReason:          func(spec *autov1alpha1.StackRolloutSpec) { spec.Windows = []autov1alpha1.Window{{Cron: "at noon"}} },
	} {
		t.Run(reason, func(t *testing.T) {
			f := newFleet(t)
			f.offers("b")
			f.finish("b")
			spoil(&f.rollout.Spec)
			f.approve(autov1alpha1.ApprovalReject, "", "b")
			f.decide()
			f.Expect(f.last.reason).To(Equal(reason))
			f.Expect(waves.Beginning(&f.rollout.Status)).To(BeNil())
			f.Expect(f.rollout.Status.Rejected).To(Equal(revision("b").Revision))
		})
	}
}

// TestNewStackDoesNotBeginWithWhatWasRejected: also not after another commit came, while its own source has the rejected one.
func TestNewStackDoesNotBeginWithWhatWasRejected(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	f.finish("b")
	added := f.add("added", false)
	added.Status = pulumiv1.StackStatus{}
	released := func() bool {
		return waves.Release(added, f.rollout, revision("b"), revision("b").Digest, nil).Released
	}
	f.Expect(released()).To(BeTrue())
	f.stacks = f.stacks[:8]
	f.events = nil
	f.approve(autov1alpha1.ApprovalReject, "", "b")
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutCompleteReason))
	f.Expect(released()).To(BeFalse())
	f.Expect(waves.Beginning(&f.rollout.Status)).To(BeNil())
	f.decide()
	f.Expect(f.events).To(Equal([]string{autov1alpha1.RevisionRejectedReason}))

	// The history is not forgotten: what a Stack fails with that was broken before stops nobody.
	f.stacks[0].Status.LastUpdate.LastSuccessfulCommit, f.stacks[0].Status.LastAppliedRevision = revision("0").Digest, revision("0").Revision
	f.offers("c")
	fail(f.stacks[0], "c")
	f.decide()
	f.Expect(released()).To(BeFalse())
	f.Expect(f.last.failed).To(BeFalse())
	f.finish("c")
	f.Expect(waves.Beginning(&f.rollout.Status)).To(HaveValue(Equal(revision("c"))))

	// A rejection of what is not rolled out any longer is going to be refused.
	f.offers("d")
	f.decide()
	f.approve(autov1alpha1.ApprovalReject, "", "c")
	f.approvals[len(f.approvals)-1].Digest = ""
	f.decide()
	f.Expect(waves.Beginning(&f.rollout.Status)).To(HaveValue(Equal(revision("c"))))
}

// TestRejectedRevisionIsNotStableWhenThoseThatWaitAreSuspended: then all waves are complete.
func TestRejectedRevisionIsNotStableWhenThoseThatWaitAreSuspended(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	for _, stack := range f.turns() {
		succeed(stack, "b")
	}
	f.approve(autov1alpha1.ApprovalReject, "", "b")
	f.decide()
	for _, stack := range f.stacks[3:] {
		stack.Spec.Suspend = true
	}
	f.decide()
	f.Expect(f.last.complete).To(BeTrue())
	f.Expect(waves.Beginning(&f.rollout.Status)).To(HaveValue(Equal(revision("a"))))
}

// again returns the content of the revision under another name, as of a commit that changes only what is no part of the artifact.
func again(letter string, number int) *autov1alpha1.RolloutRevision {
	return &autov1alpha1.RolloutRevision{Revision: fmt.Sprintf("main@sha1:%040x", number), Digest: revision(letter).Digest}
}

// TestDecisionIsAboutContent: whoever rejected or promoted a revision has looked at what it contains.
func TestDecisionIsAboutContent(t *testing.T) {
	t.Run("rejected, and there is another name for it", func(t *testing.T) {
		f := newFleet(t)
		f.offers("b")
		f.approve(autov1alpha1.ApprovalReject, "", "b")
		f.decide()
		f.finish("b")
		for i := range 2 {
			f.events, f.offer = nil, again("b", i)
			f.decide()
			f.Expect(f.last.reason).To(Equal(autov1alpha1.RevisionRejectedReason))
			f.Expect(f.last.message).To(Equal("alice rejected the content of " + f.offer.Revision + ": no other Stack gets it"))
			f.Expect(f.turns()).To(BeEmpty())
			f.Expect(f.events).To(Equal([]string{autov1alpha1.RevisionRejectedReason}), "for the status of this commit, too")
			f.decide()
			f.Expect(f.events).To(HaveLen(1))
		}
	})
	t.Run("promoted, and there is another name for it", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[1].Promotion, f.rollout.Spec.Waves[1].MaxConcurrent = autov1alpha1.PromoteManual, number(1)
		f.offers("b")
		f.finish("b")
		f.approve(autov1alpha1.ApprovalApprove, "rest", "b")
		f.offer = again("b", 1)
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1))
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue())
	})
	for _, decision := range []autov1alpha1.ApprovalDecision{autov1alpha1.ApprovalApprove, autov1alpha1.ApprovalReject} {
		t.Run(fmt.Sprintf("%s, and other content has the name", decision), func(t *testing.T) {
			// As a Program that was created again: its revision is its generation.
			f := newFleet(t)
			f.rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual
			f.approvals = []autov1alpha1.ApprovalSpec{{Wave: "rest", Revision: "2", Digest: revision("b").Digest, Decision: decision, By: "alice"}}
			f.offer = &autov1alpha1.RolloutRevision{Revision: "2", Digest: revision("c").Digest}
			f.decide()
			f.finish("c")
			f.Expect(f.last.reason).To(Equal(autov1alpha1.PromotionRequiredReason))
		})
	}
	t.Run("promoted, and the commit has other content", func(t *testing.T) {
		// Which a source publishes that includes another one. The commit is what somebody has looked at.
		f := newFleet(t)
		f.rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual
		f.approve(autov1alpha1.ApprovalApprove, "", "b")
		f.offer = &autov1alpha1.RolloutRevision{Revision: revision("b").Revision, Digest: revision("c").Digest}
		f.decide()
		f.finish("c")
		f.Expect(f.last.complete).To(BeTrue())
	})
}
