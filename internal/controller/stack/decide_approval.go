package stack

import (
	"fmt"
	"slices"
	"strings"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/steps"
)

// For a Stack with spec.approval, the controller makes a plan of each change, with an Update that changes nothing. status.plan has the plan
// and the inputs that it was made for. Another plan is made when the Stack has other inputs now. A plan that needs no approval, for example
// because it changes nothing, is carried out in the same way, so that the Update controller has one rule: in the Workspace of such a Stack,
// only the approved plan runs.

// freeStalePlans is how many plans in a row, with the same changes, may be out of date before the next plan has to wait.
const freeStalePlans = 1

// decideOnApproval makes a plan of an update or a destroy that needs one, waits for its approval, or has it carried out.
func decideOnApproval(o observation, d decision) decision {
	policy, plan := o.stack.Spec.Approval, o.stack.Status.Plan
	if policy == nil || d.action != actionUpdate || d.kind == autov1alpha1.UpdateTypePreview {
		return d
	}
	makePlan := d
	makePlan.plans = true
	if plan == nil || plan.Operation != plannedOperation(d) || o.planGone {
		return makePlan
	}
	switch plans.Judge(plans.Case{Plan: plan, Policy: policy, Changed: newInputs(o, plan.UpdateInputs), Now: o.now}).State {
	case plans.Approved:
		d.applies = true
		return d
	case plans.Pending:
		return awaitApproval(o, d, plan, pulumiv1.ApprovalRequiredReason, describePending(o.stack, plan))
	case plans.Rejected:
		return awaitApproval(o, d, plan, pulumiv1.PlanRejectedReason, describeRejected(o.stack, plan))
	case plans.Stale:
		if left := staleDue(plan).Sub(o.now); left > 0 {
			return decision{action: actionWait, wake: byTime, reason: pulumiv1.PlanStaleReason, after: left,
				message: fmt.Sprintf("plan %s was out of date before it could be carried out (%d times in a row): the next plan is made in %s%s",
					plan.Name, plan.Stale, left.Round(time.Second), deletionHint(o.stack))}
		}
	}
	return makePlan
}

// decideOnTurn holds an approved plan back until the StackRollout of the Stack gives it a turn. A Stack that has what it had before stays ready.
func decideOnTurn(o observation, d decision) decision {
	if !o.planOnly || d.action != actionUpdate || d.plans || d.kind == autov1alpha1.UpdateTypePreview {
		return d
	}
	wait := decision{action: actionWait, wake: byRollout, reason: pulumiv1.WaveNotOpenReason, cause: d.cause, driftDigest: d.driftDigest, awaitsTurn: true,
		message: "its plan is approved, and the new revision waits for its turn in the StackRollout"}
	if last := o.stack.Status.LastUpdate; last != nil && last.State == pulumiv1.StackUpdateSucceeded && !somebodyAsks(o, d) {
		wait.action, wait.quiet = actionHold, true
	}
	wait.after = untilExpiry(o)
	return wait
}

// untilExpiry returns the time until the plan in the status expires, after which another one is made; zero when it does not.
func untilExpiry(o observation) time.Duration {
	if plan := o.stack.Status.Plan; plan != nil {
		if expiry := plans.Expiry(plan); expiry != nil {
			return max(expiry.Sub(o.now), time.Second)
		}
	}
	return 0
}

// awaitApproval waits for Approvals, or until the plan expires. The Stack stays ready if nobody asked for the plan: it is one of a resync
// or of a correction of drift.
func awaitApproval(o observation, d decision, plan *pulumiv1.PlanStatus, reason, message string) decision {
	wait := decision{action: actionAwaitApproval, wake: byApproval, reason: reason, message: message, driftDigest: d.driftDigest, cause: d.cause}
	wait.quiet = plan.Cause == pulumiv1.PlanForResync || plan.Cause == pulumiv1.PlanForDrift
	wait.after = untilExpiry(o)
	return wait
}

// plannedOperation returns the operation of a plan for the decision.
func plannedOperation(d decision) pulumiv1.ApprovedOperation {
	switch {
	case d.kind == autov1alpha1.UpdateTypeDestroy:
		return pulumiv1.ApprovedDestroy
	case d.driftDigest != "":
		return pulumiv1.ApprovedDriftCorrection
	}
	return pulumiv1.ApprovedUp
}

// openPlan returns the plan that still has to be carried out or made again; nil when there is none. An open plan is a reason for an update
// by itself, because the request that led to it counts as handled.
func openPlan(o observation) *pulumiv1.PlanStatus {
	plan, drift := o.stack.Status.Plan, o.stack.Status.Drift
	switch {
	case o.stack.Spec.Approval == nil, plan == nil, o.stack.IsPreview(), plans.IsConcluded(plan):
		return nil
	case plan.Operation == pulumiv1.ApprovedDestroy:
		return nil
	case plansHeldRevision(o, plan):
		return nil
	case plan.Operation == pulumiv1.ApprovedDriftCorrection && (!correctsDrift(o) && !retriesCorrection(o) || drift.Digest != plan.Drift):
		return nil
	}
	return plan
}

// plansHeldRevision reports whether the plan is of a revision that the Stack may not have any longer, because another one took its place, and nothing
// else asked for the plan.
func plansHeldRevision(o observation, plan *pulumiv1.PlanStatus) bool {
	return o.held != nil && plan.Commit != commitOf(o.artifact) && strings.HasPrefix(plan.Trigger, newCommitTrigger)
}

// failedOnLock reports whether the plan could not be carried out because another process had the lock of the stack. The next attempt is due
// when it would be for any other update.
func failedOnLock(o observation, plan *pulumiv1.PlanStatus) bool {
	last := o.stack.Status.LastUpdate
	return last != nil && last.Conflicts > 0 && plan.Update != "" && last.Name == plan.Update
}

// nextPlan returns the plan in the status with what approvers decided about it.
func nextPlan(o observation) *pulumiv1.PlanStatus {
	plan := o.stack.Status.Plan
	next := plans.Next(*plan, plans.Situation{
		Policy: o.stack.Spec.Approval, Approvals: o.approvals, Running: o.update != nil && o.update.HasStarted(),
		Unwanted: plan.Operation == pulumiv1.ApprovedDriftCorrection && openPlan(o) == nil || plansHeldRevision(o, plan), Now: o.now,
	})
	return &next
}

// staleDue returns when a plan may be made again after one that was out of date: at once the first time.
func staleDue(plan *pulumiv1.PlanStatus) time.Time {
	if plan.Stale <= freeStalePlans || plan.StaleSince == nil {
		return time.Time{}
	}
	return plan.StaleSince.Add(failureBackoff(plan.Stale-freeStalePlans, longestConflictWait))
}

// countChanges counts what a plan does.
func countChanges(counts map[string]int64) (summary string, changes, destructive int64) {
	var replaced, others int64
	for _, count := range steps.Counts(counts) {
		if !count.Changes {
			continue
		}
		changes += count.Steps
		if count.Destroys {
			destructive += count.Steps
		}
		switch {
		case count.Replaces:
			replaced += count.Steps
		case !slices.Contains([]string{"create", "update", "delete"}, count.Name):
			others += count.Steps
		}
	}
	summary = fmt.Sprintf("+%d ~%d +-%d -%d", counts["create"], counts["update"], replaced, counts["delete"])
	if others > 0 {
		summary += fmt.Sprintf(" =%d", others)
	}
	return summary, changes, destructive
}

// describePending says what waits, and how to approve it.
func describePending(stack *pulumiv1.Stack, plan *pulumiv1.PlanStatus) string {
	why := ""
	if plans.HasNewValues(plan) && !slices.Contains(stack.Spec.Approval.Operations, plan.Operation) && len(stack.Spec.Approval.Operations) > 0 {
		why = ", because its configuration and environment are not those of the last plan that was carried out"
	}
	return fmt.Sprintf("plan %s (%s) waits for approval%s: flux-pulumi plan show %s -n %s, then flux-pulumi plan approve %s -n %s --digest %s%s",
		plan.Name, plan.Summary, why, stack.Name, stack.Namespace, stack.Name, stack.Namespace, plan.Digest, deletionHint(stack))
}

func describeRejected(stack *pulumiv1.Stack, plan *pulumiv1.PlanStatus) string {
	return fmt.Sprintf("plan %s (%s) was rejected by %s: change the source or the spec, or request another plan with flux-pulumi reconcile stack %s -n %s%s",
		plan.Name, plan.Summary, plan.RejectedBy, stack.Name, stack.Namespace, deletionHint(stack))
}

// deletionHint returns what a message about a plan adds when the Stack is being deleted.
func deletionHint(stack *pulumiv1.Stack) string {
	if stack.DeletionTimestamp.IsZero() {
		return ""
	}
	return "; the resources are destroyed after that; " + orphanHint
}
