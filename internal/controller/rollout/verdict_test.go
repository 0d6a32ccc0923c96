package rollout

import (
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
