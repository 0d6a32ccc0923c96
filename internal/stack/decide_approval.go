package stack

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// For a Stack with spec.approval, the controller makes a plan of each change, with an Update that changes nothing. status.plan has the plan
// and the inputs that it was made for. The plan is void when the Stack has other inputs now. A plan that needs no approval, for example
// because it changes nothing, is carried out in the same way, so that the Update controller has one rule: in the Workspace of such a Stack,
// only the approved plan runs.

const (
	// maxApprovals bounds the approvals in the status.
	maxApprovals = 10
	// freeStalePlans is how many plans in a row, with the same changes, may be out of date before the next plan has to wait.
	freeStalePlans = 1
)

// decideOnApproval makes a plan of an update or a destroy that needs one, waits for its approval, or has it carried out.
func decideOnApproval(o observation, d decision) decision {
	policy, plan := o.stack.Spec.Approval, o.stack.Status.Plan
	if policy == nil || d.action != actionUpdate || d.kind == autov1alpha1.UpdateTypePreview {
		return d
	}
	makePlan := d
	makePlan.plans = true
	if plan == nil || plan.Operation != plannedOperation(d) || o.planGone || isVoid(o, plan) {
		return makePlan
	}
	switch plan.State {
	case pulumiv1.PlanApproved:
		d.applies = true
		return d
	case pulumiv1.PlanPending:
		return awaitApproval(o, d, plan, pulumiv1.ApprovalRequiredReason, describePending(o.stack, plan))
	case pulumiv1.PlanRejected:
		return awaitApproval(o, d, plan, pulumiv1.PlanRejectedReason, describeRejected(o.stack, plan))
	case pulumiv1.PlanStale:
		if left := staleDue(plan).Sub(o.now); left > 0 {
			return decision{action: actionWait, wake: byTime, reason: pulumiv1.PlanStaleReason, after: left,
				message: fmt.Sprintf("plan %s was out of date before it could be carried out (%d times in a row): the next plan is made in %s%s",
					plan.Name, plan.Stale, left.Round(time.Second), deletionHint(o.stack))}
		}
	}
	return makePlan
}

// awaitApproval waits for Approvals, or until the plan expires. The Stack stays ready if nobody asked for the plan: it is one of a resync
// or of a correction of drift.
func awaitApproval(o observation, d decision, plan *pulumiv1.PlanStatus, reason, message string) decision {
	wait := decision{action: actionAwaitApproval, wake: byApproval, reason: reason, message: message, driftDigest: d.driftDigest, cause: d.cause}
	wait.quiet = plan.Cause == pulumiv1.PlanForResync || plan.Cause == pulumiv1.PlanForDrift
	if plan.ExpiresAt != nil && mayExpire(plan) {
		wait.after = max(plan.ExpiresAt.Sub(o.now), time.Second)
	}
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
	case o.stack.Spec.Approval == nil, plan == nil, o.stack.Spec.Preview, isConcluded(plan):
		return nil
	case plan.Operation == pulumiv1.ApprovedDestroy:
		return nil
	case plan.Operation == pulumiv1.ApprovedDriftCorrection && (!correctsDrift(o) || drift.Digest != plan.Drift):
		return nil
	}
	return plan
}

// isConcluded reports whether the result of the plan, or of the attempt to make it, is the last update of the Stack: nothing is left to do
// about the plan.
func isConcluded(plan *pulumiv1.PlanStatus) bool {
	return plan.State == pulumiv1.PlanApplied || plan.State == pulumiv1.PlanFailed
}

// failedOnLock reports whether the plan could not be carried out because another process had the lock of the stack. The next attempt is due
// when it would be for any other update.
func failedOnLock(o observation, plan *pulumiv1.PlanStatus) bool {
	last := o.stack.Status.LastUpdate
	return last != nil && last.Conflicts > 0 && plan.Update != "" && last.Name == plan.Update
}

// isVoid reports whether the plan is concluded or superseded, was made for other inputs than the Stack has now, or was made with another
// spec.approval.enforce.
func isVoid(o observation, plan *pulumiv1.PlanStatus) bool {
	return isConcluded(plan) || plan.State == pulumiv1.PlanSuperseded || plan.Enforce != enforcement(o.stack) ||
		newInputs(o, plan.UpdateInputs) != ""
}

func enforcement(stack *pulumiv1.Stack) autov1alpha1.PlanEnforcement {
	return cmp.Or(stack.Spec.Approval.Enforce, autov1alpha1.EnforcePlan)
}

// needsNoApproval returns why the plan may be carried out without an approval; empty when it needs one.
func needsNoApproval(policy *pulumiv1.ApprovalPolicy, plan *pulumiv1.PlanStatus) string {
	switch {
	case policy == nil:
		return "spec.approval is not set"
	case plan.Changes == 0:
		return "it changes no resource"
	case hasNewValues(plan) && slices.Contains(policy.Operations, pulumiv1.ApprovedUp):
	case len(policy.Operations) > 0 && !slices.Contains(policy.Operations, plan.Operation):
		return fmt.Sprintf("spec.approval.operations does not have %s", plan.Operation)
	case policy.Require == pulumiv1.ApprovalDestructive && plan.Destructive == 0:
		return "it deletes and replaces no resource"
	}
	return ""
}

// hasNewValues reports whether a correction of drift has other values than the last plan that was carried out, or nobody knows. Then it does
// not only restore what was approved, and counts as an update, too.
func hasNewValues(plan *pulumiv1.PlanStatus) bool {
	known := plan.ValuesDigest != "" && plan.ValuesDigest == plan.ApprovedValuesDigest
	return plan.Operation == pulumiv1.ApprovedDriftCorrection && !known
}

// followApprovals records in the plan what approvers decided about it, before anything else is decided. It does not change the state of the
// plan while an Update of the Stack has started.
func followApprovals(o *observation) {
	plan := o.stack.Status.Plan
	switch {
	case plan == nil:
		return
	case plan.State != pulumiv1.PlanPending && plan.State != pulumiv1.PlanApproved && plan.State != pulumiv1.PlanRejected:
		return
	case o.update != nil && o.update.HasStarted():
		// Only rejections are recorded, so that no later plan takes over the approvals of a rejected one.
		for i := range o.approvals {
			if o.approvals[i].Spec.Decision == autov1alpha1.ApprovalReject {
				takeApproval(plan, &o.approvals[i])
			}
		}
		return
	case o.stack.Spec.Approval == nil, plan.Operation == pulumiv1.ApprovedDriftCorrection && openPlan(*o) == nil:
		plan.State = pulumiv1.PlanSuperseded
		return
	}
	slices.SortFunc(o.approvals, func(a, b autov1alpha1.Approval) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range o.approvals {
		takeApproval(plan, &o.approvals[i])
	}
	switch {
	case plan.RejectedBy != "":
		plan.State = pulumiv1.PlanRejected
	case needsNoApproval(o.stack.Spec.Approval, plan) != "", len(plan.Approvals) > 0:
		plan.State = pulumiv1.PlanApproved
	default:
		plan.State = pulumiv1.PlanPending
	}
	if plan.ExpiresAt != nil && !o.now.Before(plan.ExpiresAt.Time) && mayExpire(plan) {
		plan.State = pulumiv1.PlanExpired
	}
}

// mayExpire reports whether the plan can expire, so that another one is made. A rejected plan cannot if somebody asked for the change: the
// same plan would be shown again and again.
func mayExpire(plan *pulumiv1.PlanStatus) bool {
	return plan.RejectedBy == "" || plan.Cause != pulumiv1.PlanForChange
}

// takeApproval records the decision of an Approval in the plan, if the Approval is accepted and is about exactly this plan.
func takeApproval(plan *pulumiv1.PlanStatus, approval *autov1alpha1.Approval) {
	switch known := slices.ContainsFunc(plan.Approvals, func(item pulumiv1.PlanApproval) bool { return item.By == approval.Spec.By }); {
	case approval.Spec.Update != plan.Name, approval.Spec.Digest != plan.Digest, plan.Digest == "", !isAccepted(approval):
	case approval.Spec.Decision == autov1alpha1.ApprovalReject:
		plan.RejectedBy = cmp.Or(plan.RejectedBy, approval.Spec.By)
	case approval.Spec.Decision == autov1alpha1.ApprovalApprove && !known && len(plan.Approvals) < maxApprovals:
		plan.Approvals = append(plan.Approvals, pulumiv1.PlanApproval{
			By: approval.Spec.By, At: approval.CreationTimestamp, Reason: approval.Spec.Reason,
		})
	}
}

// staleDue returns when a plan may be made again after one that was out of date: at once the first time.
func staleDue(plan *pulumiv1.PlanStatus) time.Time {
	if plan.Stale <= freeStalePlans || plan.StaleSince == nil {
		return time.Time{}
	}
	return plan.StaleSince.Add(failureBackoff(plan.Stale-freeStalePlans, longestConflictWait))
}

// carryOver copies the approvals of an earlier plan to a plan that was made again, in two cases: both plans have equal inputs and changes,
// or the update of the earlier plan failed half-way, the inputs are equal, and the new plan has only a part of the approved changes, each
// with the same values. Inputs that differ only in the artifact are equal if both artifacts have the same content for the Stack: the earlier
// artifact may be gone. Equal inputs alone prove nothing, because a program reads more than its inputs. earlierChanges and changes are those
// of the earlier and of the new plan. nil means that they are not known completely.
func carryOver(plan, earlier *pulumiv1.PlanStatus, earlierChanges, changes []autov1alpha1.ResourceChange, now time.Time) {
	if earlier == nil || earlier.RejectedBy != "" || earlier.State == pulumiv1.PlanApplied ||
		earlier.Operation != plan.Operation || earlier.Enforce != plan.Enforce {
		return
	}
	sameInputs := earlier.InputsDigest != "" && earlier.InputsDigest == plan.InputsDigest
	equal := earlier.ChangesDigest != "" && earlier.ChangesDigest == plan.ChangesDigest &&
		(sameInputs || haveEqualContent(earlier.UpdateInputs, plan.UpdateInputs))
	if equal && earlier.State == pulumiv1.PlanStale {
		plan.Stale, plan.StaleSince = earlier.Stale, earlier.StaleSince
	}
	left := earlier.State == pulumiv1.PlanFailed && sameInputs && isPart(changes, earlierChanges)
	expired := earlier.ExpiresAt == nil || !now.Before(earlier.ExpiresAt.Time)
	if len(earlier.Approvals) == 0 || expired || !equal && !left {
		return
	}
	plan.Approvals, plan.CarriedFrom, plan.ExpiresAt = earlier.Approvals, earlier.Name, earlier.ExpiresAt
}

// isPart reports whether each of the changes is one of the approved ones: the same operation on the same resource, with the same old and new
// values.
func isPart(changes, approved []autov1alpha1.ResourceChange) bool {
	known := map[string]bool{}
	for i := range approved {
		known[approved[i].Digest] = true
	}
	return len(changes) > 0 && !slices.ContainsFunc(changes, func(change autov1alpha1.ResourceChange) bool {
		return change.Digest == "" || !known[change.Digest]
	})
}

// harmless are the operations of Pulumi that neither delete nor replace a resource. unchanging are the harmless ones that change no
// resource.
var (
	unchanging = []string{"same", "read", "refresh"}
	harmless   = append([]string{"create", "update", "import"}, unchanging...)
)

// countChanges counts what a plan does. An unknown operation counts as destructive.
func countChanges(counts map[string]int64) (summary string, changes, destructive int64) {
	var replaced, others int64
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		count := counts[kind]
		if slices.Contains(unchanging, kind) || count <= 0 {
			continue
		}
		changes += count
		if !slices.Contains(harmless, kind) {
			destructive += count
		}
		switch {
		case strings.Contains(kind, "replace"):
			replaced += count
		case !slices.Contains([]string{"create", "update", "delete"}, kind):
			others += count
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
	if hasNewValues(plan) && !slices.Contains(stack.Spec.Approval.Operations, plan.Operation) && len(stack.Spec.Approval.Operations) > 0 {
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
