package rollout

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// hasPlan makes the Stack report a plan of the revision.
func hasPlan(stack *pulumiv1.Stack, letter string, state pulumiv1.PlanState) {
	stack.Status.Plan = &pulumiv1.PlanStatus{Name: stack.Name + "-" + letter, State: state, Operation: pulumiv1.ApprovedUp}
	stack.Status.Plan.Commit, stack.Status.Plan.Revision = revision(letter).Digest, revision(letter).Revision
}

// approving returns a fleet whose Stacks of wave rest need approvals.
func approving(t *testing.T) *fleet {
	f := newFleet(t)
	for _, stack := range f.stacks[3:] {
		stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
	}
	f.rollout.Spec.Waves[1].MaxConcurrent = number(2)
	return f
}

func TestPlansOfAWaveAreMadeBeforeItsTurns(t *testing.T) {
	f := approving(t)
	f.offers("b")
	f.Expect(f.rollout.Status.Plans).To(BeEmpty(), "an earlier wave is open")
	f.finish("b")
	f.Expect(f.turns()).To(BeEmpty(), "no plan is approved")
	f.Expect(f.rollout.Status.Plans).To(ConsistOf("team/s3", "team/s4", "team/s5", "team/s6", "team/s7"))
	f.Expect(f.last.message).To(Equal("wave rest waits: the plans of 5 of its Stacks are not approved"))
	f.Expect(f.last.wake).To(Equal(byStacks))

	hasPlan(f.stacks[3], "b", pulumiv1.PlanPending)
	hasPlan(f.stacks[4], "a", pulumiv1.PlanApproved)
	f.decide()
	f.Expect(f.turns()).To(BeEmpty(), "one is not approved, and the other one is of an earlier revision")
	hasPlan(f.stacks[4], "b", pulumiv1.PlanApproved)
	f.stacks[4].Status.Plan.Operation = pulumiv1.ApprovedDriftCorrection
	f.decide()
	f.Expect(f.turns()).To(BeEmpty(), "one corrects drift")
	hasPlan(f.stacks[5], "b", pulumiv1.PlanRejected)
	f.decide()
	f.Expect(f.last.message).To(Equal("wave rest waits: the plans of 5 of its Stacks are not approved (1 rejected)"))
	for _, stack := range f.stacks[3:6] {
		hasPlan(stack, "b", pulumiv1.PlanApproved)
	}
	f.decide()
	f.Expect(f.turns()).To(HaveLen(2), "as many as may be updated at once")
	f.Expect(f.rollout.Status.Plans).To(HaveLen(3), "and the others keep their plans")
	first := f.turns()
	succeed(first[0], "b")
	first[0].Status.Plan.State = pulumiv1.PlanApplied
	f.decide()
	f.Expect(f.turns()).To(HaveLen(2))
	f.Expect(f.rollout.Status.Plans).To(HaveLen(2))

	f.offers("c")
	f.Expect(f.rollout.Status.Plans).To(BeEmpty(), "another revision took its place")
}

func TestNobodyBeginsToPlanWhileNothingGoesOn(t *testing.T) {
	for name, test := range map[string]struct {
		stop  func(*fleet)
		plans int
	}{
		"suspended": {func(f *fleet) { f.rollout.Spec.Suspend = true }, 4},
		"halted":    {func(f *fleet) { fail(f.stacks[0], "b") }, 4},
		"rejected":  {func(f *fleet) { f.approve(autov1alpha1.ApprovalReject, "", "b") }, 0},
		"window": {func(f *fleet) {
			f.rollout.Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowDeny, 0, 1e12)}
		}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			f := approving(t)
			f.stacks[7].Spec.Suspend = true
			f.offers("b")
			f.finish("b")
			f.Expect(f.rollout.Status.Plans).To(HaveLen(4))
			test.stop(f)
			f.stacks[7].Spec.Suspend = false
			hasPlan(f.stacks[3], "b", pulumiv1.PlanApproved)
			f.decide()
			f.Expect(f.rollout.Status.Plans).To(HaveLen(test.plans))
			f.Expect(f.turns()).To(BeEmpty())
		})
	}
}

// Nobody can approve plans that are not made, because their Stacks wait for each other.
func TestStacksThatNeedApprovalsSayThatTheyWaitForEachOther(t *testing.T) {
	f := approving(t)
	for i, stack := range f.stacks[3:5] {
		stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: f.stacks[4-i].Name}}
	}
	f.offers("b")
	f.finish("b")
	for _, stack := range f.stacks[5:] {
		hasPlan(stack, "b", pulumiv1.PlanApproved)
	}
	f.decide()
	f.finish("b")
	f.Expect(f.last.message).To(HavePrefix("wave rest waits: its Stacks wait for each other, remove one of these dependencies: team/s"))
}

func TestPlansAreBounded(t *testing.T) {
	f := newFleet(t)
	for i := range 500 {
		f.add(fmt.Sprintf("%s-%03d", strings.Repeat("n", 250), i), false)
	}
	for _, stack := range f.stacks {
		stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
	}
	f.rollout.Spec.Waves = f.rollout.Spec.Waves[1:]
	f.offers("b")
	f.Expect(lengthOf(f.rollout.Status.Plans)).To(And(BeNumerically("<=", plansLength), BeNumerically(">", plansLength-300)))
	for i, stack := range f.stacks {
		stack.Name = fmt.Sprintf("short-%03d", i)
	}
	f.decide()
	f.Expect(f.rollout.Status.Plans).To(HaveLen(maxPlans))
}

func TestPlanWakesItsRollout(t *testing.T) {
	f := approving(t)
	before := f.stacks[3]
	after := before.DeepCopy()
	hasPlan(after, "b", pulumiv1.PlanPending)
	f.Expect(concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue())
	approved := after.DeepCopy()
	hasPlan(approved, "b", pulumiv1.PlanApproved)
	f.Expect(concerns(event.UpdateEvent{ObjectOld: after, ObjectNew: approved})).To(BeTrue())
	approved.Status.Plan.Summary = "+1"
	f.offers("b")
	kept, err := CacheTransform(approved)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(kept.(*pulumiv1.Stack).Status.Plan.Summary).To(BeEmpty())
	f.Expect(waves.Observe(kept.(*pulumiv1.Stack), f.rollout, &f.rollout.Status)).To(And(HaveField("Approval", true), HaveField("Approved", true)))
}
