package plans

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// MaxApprovals bounds the approvals in the status.
const MaxApprovals = 10

// Situation is what decides about the state of a plan, apart from the plan itself.
type Situation struct {
	// Policy is spec.approval of the Stack; nil when it is not set.
	Policy *pulumiv1.ApprovalPolicy
	// Approvals are those that name the plan.
	Approvals []autov1alpha1.Approval
	// Running is true while an Update of the Stack has started.
	Running bool
	// Unwanted is true when nobody asks for the change any longer.
	Unwanted bool
	Now      time.Time
}

// Next returns the plan with what approvers decided about it. While an Update of the Stack has started, only rejections are recorded, so that
// no later plan takes over the approvals of a rejected one.
func Next(plan pulumiv1.PlanStatus, s Situation) pulumiv1.PlanStatus {
	switch {
	case IsMadeAgain(&plan):
		for _, approval := range inOrder(s.Approvals) {
			if approval.Spec.Decision == autov1alpha1.ApprovalReject {
				take(&plan, approval)
			}
		}
		return plan
	case !isOpen(&plan):
		return plan
	case !s.Running && (s.Policy == nil || s.Unwanted):
		plan.State = pulumiv1.PlanSuperseded
		return plan
	}
	for _, approval := range inOrder(s.Approvals) {
		if !s.Running || approval.Spec.Decision == autov1alpha1.ApprovalReject {
			take(&plan, approval)
		}
	}
	switch {
	case s.Running:
	case isTooLate(&plan, s.Now):
		plan.State = pulumiv1.PlanExpired
	case plan.RejectedBy != "":
		plan.State = pulumiv1.PlanRejected
	case NeedsNoApproval(s.Policy, &plan) != "", len(plan.Approvals) > 0:
		plan.State = pulumiv1.PlanApproved
	default:
		plan.State = pulumiv1.PlanPending
	}
	return plan
}

// inOrder returns the Approvals in the order in which they were created.
func inOrder(approvals []autov1alpha1.Approval) []*autov1alpha1.Approval {
	ordered := make([]*autov1alpha1.Approval, len(approvals))
	for i := range approvals {
		ordered[i] = &approvals[i]
	}
	slices.SortFunc(ordered, func(a, b *autov1alpha1.Approval) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return ordered
}

// take records the decision of an Approval in the plan, if the Approval counts and is about exactly this plan.
func take(plan *pulumiv1.PlanStatus, approval *autov1alpha1.Approval) {
	about := &Reference{Name: approval.Spec.Update, Digest: approval.Spec.Digest}
	switch known := slices.ContainsFunc(plan.Approvals, func(item pulumiv1.PlanApproval) bool { return item.By == approval.Spec.By }); {
	case !about.Names(plan), !Counts(approval):
	case approval.Spec.Decision == autov1alpha1.ApprovalReject:
		plan.RejectedBy = cmp.Or(plan.RejectedBy, approval.Spec.By)
	case approval.Spec.Decision == autov1alpha1.ApprovalApprove && !known && len(plan.Approvals) < MaxApprovals:
		plan.Approvals = append(slices.Clip(plan.Approvals), pulumiv1.PlanApproval{
			By: approval.Spec.By, At: approval.CreationTimestamp, Reason: approval.Spec.Reason,
		})
	}
}

// Counts reports whether an Approval counts. An approval counts once the controller of Approvals has accepted it. A rejection counts until
// that refuses it, so that it is not too late.
func Counts(approval *autov1alpha1.Approval) bool {
	conditions := approval.Status.Conditions
	if approval.Spec.Decision == autov1alpha1.ApprovalReject {
		return !meta.IsStatusConditionFalse(conditions, autov1alpha1.ApprovalAccepted)
	}
	return meta.IsStatusConditionTrue(conditions, autov1alpha1.ApprovalAccepted)
}

// RevisionOf returns the revision that an Approval is about. Its digest is known once the Approval was accepted.
func RevisionOf(approval *autov1alpha1.Approval) autov1alpha1.RolloutRevision {
	return autov1alpha1.RolloutRevision{Revision: approval.Spec.Revision, Digest: approval.Status.TargetDigest}
}

// NeedsNoApproval returns why the plan may be carried out without an approval; empty when it needs one.
func NeedsNoApproval(policy *pulumiv1.ApprovalPolicy, plan *pulumiv1.PlanStatus) string {
	switch {
	case policy == nil:
		return "spec.approval is not set"
	case plan.Changes == 0:
		return "it changes no resource"
	case HasNewValues(plan) && slices.Contains(policy.Operations, pulumiv1.ApprovedUp):
	case len(policy.Operations) > 0 && !slices.Contains(policy.Operations, plan.Operation):
		return fmt.Sprintf("spec.approval.operations does not have %s", plan.Operation)
	case policy.Require == pulumiv1.ApprovalDestructive && plan.Destructive == 0:
		return "it deletes and replaces no resource"
	}
	return ""
}

// HasNewValues reports whether a correction of drift has other values than the last plan that was carried out, or nobody knows. Then it does
// not only restore what was approved, and counts as an update, too.
func HasNewValues(plan *pulumiv1.PlanStatus) bool {
	known := plan.ValuesDigest != "" && plan.ValuesDigest == plan.ApprovedValuesDigest
	return plan.Operation == pulumiv1.ApprovedDriftCorrection && !known
}

// CarryOver copies the approvals of an earlier plan to a plan that was made again, in two cases: both plans have equal inputs and changes,
// or the update of the earlier plan failed half-way, the inputs are equal, and the new plan has only a part of the approved changes, each
// with the same values. Inputs that differ only in the artifact are equal if both artifacts have the same content for the Stack: the earlier
// artifact may be gone. Equal inputs alone prove nothing, because a program reads more than its inputs. earlierChanges and changes are those
// of the earlier and of the new plan. nil means that they are not known completely.
func CarryOver(plan, earlier *pulumiv1.PlanStatus, earlierChanges, changes []autov1alpha1.ResourceChange, now time.Time) {
	if earlier == nil || earlier.RejectedBy != "" || earlier.State == pulumiv1.PlanApplied ||
		earlier.Operation != plan.Operation || earlier.Enforce.OrDefault() != plan.Enforce.OrDefault() {
		return
	}
	sameInputs := earlier.InputsDigest != "" && earlier.InputsDigest == plan.InputsDigest
	equal := earlier.ChangesDigest != "" && earlier.ChangesDigest == plan.ChangesDigest &&
		(sameInputs || plan.HasContentOf(earlier.UpdateInputs))
	if equal && earlier.State == pulumiv1.PlanStale {
		plan.Stale, plan.StaleSince = earlier.Stale, earlier.StaleSince
	}
	begun := earlier.State == pulumiv1.PlanFailed && earlier.Update != ""
	left := begun && sameInputs && isPart(changes, earlierChanges)
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
