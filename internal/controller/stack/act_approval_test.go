package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// withApproval is a Stack whose plan alice approved, and which has the given state now.
func withApproval(state pulumiv1.PlanState) *observation {
	o := guarded(state)
	plan := o.stack.Status.Plan
	plan.Approvals, plan.ApprovedValuesDigest = []pulumiv1.PlanApproval{{By: "alice", At: ago(time.Minute)}}, "sha256:values"
	return o
}

// recordNext records the end of the Update that made the next plan, for a resync: with equal changes, unless it failed.
func recordNext(t *testing.T, o *observation, name, failure string) *pulumiv1.PlanStatus {
	t.Helper()
	plan := o.stack.Status.Plan
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: name, Cause: pulumiv1.PlanForResync, UpdateInputs: plan.UpdateInputs}
	update := &autov1alpha1.Update{Name: name, Spec: autov1alpha1.UpdateSpec{
		Type: autov1alpha1.UpdateTypePreview, SavePlan: new(true), PlanEnforcement: autov1alpha1.EnforcePlan, Message: new(resyncMessage),
	}}
	update.Status.StartTime = new(ago(time.Second))
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "x", "")
	if failure != "" {
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, failure, "")
	} else {
		update.Status.ResourceChanges = map[string]int64{"create": 1}
		update.Status.Plan = &autov1alpha1.SavedPlan{Digest: "sha256:" + name, ChangesDigest: plan.ChangesDigest, InputsDigest: plan.InputsDigest}
	}
	_, err := (&Reconciler{}).recordPlan(t.Context(), o, update)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return o.stack.Status.Plan
}

// Somebody may have removed on purpose what the plan created.
func TestApprovalsOfAPlanThatWasCarriedOutAreUsedUp(t *testing.T) {
	for name, failures := range map[string][]string{
		"the next plan":                       nil,
		"the next one could not be made":      {autov1alpha1.UpdateFailedReason},
		"the next one was out of date":        {autov1alpha1.PlanStaleReason},
		"out of date, and then not made":      {autov1alpha1.PlanStaleReason, autov1alpha1.UpdateFailedReason},
		"not made, and then out of date":      {autov1alpha1.UpdateFailedReason, autov1alpha1.PlanStaleReason},
		"the next one was interrupted, twice": {autov1alpha1.InterruptedReason, autov1alpha1.InterruptedReason},
	} {
		t.Run(name, func(t *testing.T) {
			g, o := NewWithT(t), withApproval(pulumiv1.PlanApplied)
			o.stack.Status.Plan.Update = "app-applies"
			equal := *o.stack.Status.Plan
			for _, failure := range failures {
				plan := recordNext(t, o, "app-fails", failure)
				if open := openPlan(*o); open != nil {
					g.Expect(open.Cause).To(Equal(pulumiv1.PlanForResync), "what asked for the earlier plan has what it asked for")
					g.Expect(open.Trigger).To(Equal(resyncMessage))
				}
				// The next plan has the changes of the one that was carried out.
				plan.ChangesDigest, plan.InputsDigest = equal.ChangesDigest, equal.InputsDigest
			}
			plan := recordNext(t, o, "app-next", "")
			g.Expect(plan.ChangesDigest).To(Equal(equal.ChangesDigest))
			g.Expect(plan.Approvals).To(BeEmpty())
			g.Expect(plan.ApprovedValuesDigest).To(Equal("sha256:values"))
		})
	}
}

func TestOnlyAPlanThatWasBegunHasARest(t *testing.T) {
	for state, begun := range map[pulumiv1.PlanState]bool{
		pulumiv1.PlanFailed: true, pulumiv1.PlanStale: false, pulumiv1.PlanSuperseded: false, pulumiv1.PlanExpired: false,
	} {
		g, o := NewWithT(t), withApproval(state)
		o.stack.Status.Plan.Update = "app-applies"
		plan := recordNext(t, o, "app-fails", autov1alpha1.UpdateFailedReason)
		g.Expect(plan.State).To(Equal(pulumiv1.PlanFailed))
		g.Expect(plan.Update != "").To(Equal(begun), string(state))
		g.Expect(recordNext(t, o, "app-next", "").Approvals).To(HaveLen(1), "an equal plan keeps them")
	}
}

func TestWhoeverDeletesTheUpdateOfAPlanWithdrawsItsApprovals(t *testing.T) {
	for _, state := range []pulumiv1.PlanState{pulumiv1.PlanSuperseded, pulumiv1.PlanStale, pulumiv1.PlanFailed} {
		for _, gone := range []bool{false, true} {
			o := withApproval(state)
			o.planGone = gone
			NewWithT(t).Expect(len(recordNext(t, o, "app-next", "").Approvals) == 0).To(Equal(gone), "%s, gone %t", state, gone)
		}
	}
}

func TestApprovalsEndWithAnUpdateThatNeedsNone(t *testing.T) {
	for _, state := range []pulumiv1.PlanState{pulumiv1.PlanApplied, pulumiv1.PlanSuperseded} {
		for _, failure := range []string{"", autov1alpha1.UpdateFailedReason, autov1alpha1.UpdateConflictReason} {
			g, o := NewWithT(t), withApproval(state)
			update := &autov1alpha1.Update{Name: "app-2", Spec: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp}}
			conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "x", "")
			if failure != "" {
				conditions.MarkTrue(update, autov1alpha1.UpdateFailed, failure, "")
			}
			done, err := (&Reconciler{}).recordPlan(t.Context(), o, update)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(done).To(BeFalse(), "it is an ordinary update")
			g.Expect(o.stack.Status.Plan).To(BeNil(), "%s, %s", state, failure)
		}
	}
}
