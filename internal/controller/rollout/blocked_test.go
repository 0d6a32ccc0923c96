package rollout

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// dependOn makes the Stack depend on the others.
func dependOn(stack *pulumiv1.Stack, others ...*pulumiv1.Stack) {
	for _, other := range others {
		stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: other.Name})
	}
}

// Each of these lasts until something changes. Only where nobody was asked to act, and nothing says when it ends, an alert has to tell.
func TestOnlyAWaitThatShouldEndByItselfIsBlocked(t *testing.T) {
	gone := &source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "gone", Watched: true}
	closed := []autov1alpha1.Window{between(autov1alpha1.WindowDeny, 0, 100*time.Hour)}
	approval := func(stacks ...*pulumiv1.Stack) {
		for _, stack := range stacks {
			stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
		}
	}
	eachOther := func(f *fleet) {
		dependOn(f.stacks[0], f.stacks[1])
		dependOn(f.stacks[1], f.stacks[0])
	}
	for name, test := range map[string]struct {
		// change is made before the commit; after it, those that have a turn succeed if finish is true.
		change  func(*fleet)
		finish  bool
		reason  string
		blocked bool
	}{
		"runs":      {func(*fleet) {}, false, autov1alpha1.RolloutProgressingReason, false},
		"complete":  {func(*fleet) {}, true, autov1alpha1.RolloutCompleteReason, false},
		"suspended": {func(f *fleet) { f.rollout.Spec.Suspend = true }, false, autov1alpha1.RolloutSuspendedReason, false},
		"window":    {func(f *fleet) { f.rollout.Spec.Windows = closed }, false, autov1alpha1.RolloutWindowClosedReason, false},
		"promotion": {func(f *fleet) { f.rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual }, true, autov1alpha1.PromotionRequiredReason, false},
		"rejected":  {func(f *fleet) { f.approve(autov1alpha1.ApprovalReject, "", "b") }, false, autov1alpha1.RevisionRejectedReason, false},
		"halted":    {func(f *fleet) { fail(f.stacks[0], "b") }, false, autov1alpha1.RolloutHaltedReason, false},
		"soak": {func(f *fleet) { f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: 100 * time.Hour} }, true,
			autov1alpha1.RolloutSoakingReason, false},
		"source is gone":    {func(f *fleet) { f.problem = gone }, false, pulumiv1.SourceNotFoundReason, true},
		"source is refused": {func(f *fleet) { f.problem = &source.Problem{Reason: pulumiv1.AccessDeniedReason, Permanent: true} }, false, pulumiv1.AccessDeniedReason, false},
		"plans":             {func(f *fleet) { approval(f.stacks...) }, true, autov1alpha1.RolloutProgressingReason, false},
		"own windows":       {func(f *fleet) { f.stacks[0].Spec.Windows = closed }, true, autov1alpha1.RolloutProgressingReason, false},
		"one is behind":     {func(f *fleet) { f.behind = areBehind(f.stacks[0]) }, false, autov1alpha1.RolloutProgressingReason, false},
		"only one is left, which is behind": {func(f *fleet) { f.behind = areBehind(f.stacks[0]) }, true,
			autov1alpha1.RolloutProgressingReason, true},
		"behind, and own windows": {func(f *fleet) { f.behind, f.stacks[1].Spec.Windows = areBehind(f.stacks[0]), closed }, true,
			autov1alpha1.RolloutProgressingReason, true},
		"wait for each other":            {eachOther, true, autov1alpha1.RolloutProgressingReason, true},
		"plans that wait for each other": {func(f *fleet) { eachOther(f); approval(f.stacks[:2]...) }, true, autov1alpha1.RolloutProgressingReason, true},
		"depends on one whose plan is not approved": {func(f *fleet) { dependOn(f.stacks[1], f.stacks[0]); approval(f.stacks[0]) }, true,
			autov1alpha1.RolloutProgressingReason, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			test.change(f)
			f.offer = new(revision("b"))
			if f.problem != nil {
				f.offer = nil
			}
			f.decide()
			if test.finish {
				f.finish("b")
			}
			f.Expect(f.last.reason).To(Equal(test.reason), f.last.message)
			f.Expect(f.last.blocked).To(Equal(test.blocked), f.last.message)
			f.now = f.now.Add(time.Hour)
			f.Expect(f.decide().blocked).To(Equal(test.blocked), "an hour later")
		})
	}
}

// A Stack that takes long has until its timeout: then it counts as failing, which has an alert of its own.
func TestStackThatTakesLongBlocksNothing(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Timeout = &metav1.Duration{Duration: 12 * time.Hour}
	f.offers("b")
	for range 11 {
		f.now = f.now.Add(time.Hour)
		f.Expect(f.decide().blocked).To(BeFalse())
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutProgressingReason))
	}
	f.now = f.now.Add(time.Hour)
	f.Expect(f.decide().blocked).To(BeFalse())
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
}

// A Stack that is Stalled makes no attempts, and so uses no turn.
func TestStalledStacksFailLongBeforeTheTimeout(t *testing.T) {
	f := newFleet(t)
	stall := func(message string) {
		f.stacks[2].Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: "SpecInvalid", Message: message},
			{Type: meta.StalledCondition, Status: metav1.ConditionTrue, Reason: "SpecInvalid"}}
	}
	stall("spec.refs is unknown")
	f.offers("b")
	f.Expect(f.last.after).To(Equal(refusalGrace), "it may be so because of the revision before")
	succeed(f.stacks[0], "b")
	succeed(f.stacks[1], "b")
	f.now = f.now.Add(refusalGrace)
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "it would be told only after the timeout")
	f.Expect(f.last.stalled).To(BeTrue())
	f.Expect(f.rollout.Status.Failing).To(ConsistOf(autov1alpha1.RolloutFailure{Stack: "team/s2", Message: "spec.refs is unknown"}))
	f.stacks[2].Generation++
	f.decide()
	f.Expect(f.last.failed).To(BeFalse(), "somebody has changed it")
	f.stacks[2].Status.ObservedGeneration = f.stacks[2].Generation
	f.stacks[2].Status.LastUpdate.Conflicts = 1
	stall("locked")
	f.decide()
	f.Expect(f.last.failed).To(BeFalse(), "locks do not count")
	f.stacks[2].Status.LastUpdate.Conflicts, f.stacks[2].Status.CurrentUpdate = 0, &pulumiv1.CurrentStackUpdate{}
	f.decide()
	f.Expect(f.last.failed).To(BeFalse(), "it is updated")
}
