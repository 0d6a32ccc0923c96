// Package plans judges plans: whether the plan in the status of a Stack may be carried out, and what approvers decided about it. The
// controllers of Stacks, Updates and Approvals ask it.
//
// A plan is compared with what there is now in three places, each of which sees what the others do not: the Stack controller compares the inputs
// of the Stack (internal/controller/stack.decideOnApproval), the Update controller the Update that made the plan and its program
// (internal/controller/update.comparePlan), and the agent the state, the values and the CLI (internal/agent/operation.operation.checkInputs and
// checkState). A plan that is out of date is recorded as stale, and made again (internal/controller/stack.recordStale); CarryOver says when it
// keeps its approvals.
package plans

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Case is what is known about a plan.
type Case struct {
	// Plan is the plan in the status of the Stack; nil when there is none.
	Plan *pulumiv1.PlanStatus
	// Policy is spec.approval of the Stack; nil when it is not set.
	Policy *pulumiv1.ApprovalPolicy
	// Reference is the plan that is asked about; nil for whatever plan the Stack has.
	Reference *Reference
	// Changed says why the plan is not one of what the Stack asks for now; empty if it is, or if that does not matter.
	Changed string
	Now     time.Time
}

// Reference names a plan, as an Approval does, and an Update that carries out the plan.
type Reference struct {
	Name, Digest string
	// UID is that of the Update that made the plan; empty if whoever asks does not know it.
	UID types.UID
	// Enforce is how the plan is to be enforced; empty if whoever asks does not carry it out.
	Enforce autov1alpha1.PlanEnforcement
}

// CarriedOutBy returns the plan that the Update carries out. It names no plan when the Update carries out none.
func CarriedOutBy(update *autov1alpha1.Update) *Reference {
	plan := update.Spec.Plan
	if plan == nil {
		return &Reference{}
	}
	return &Reference{Name: plan.Name, Digest: plan.Digest, Enforce: plan.Enforce.OrDefault()}
}

// Names reports whether the reference is one to exactly this plan.
func (r *Reference) Names(plan *pulumiv1.PlanStatus) bool {
	return plan != nil && plan.Digest != "" && r.Name == plan.Name && r.Digest == plan.Digest && (r.UID == "" || r.UID == plan.UID)
}

// Verdict is what may become of a plan.
type Verdict struct {
	State State
	// Problem is why the plan may not be carried out, as a sentence without a full stop; empty when it may.
	Problem string
}

// State is the kind of a Verdict. Only an Approved plan may be carried out, and only a Pending, Approved or Rejected one may be decided about.
type State string

const (
	// Missing means that the Stack has no such plan.
	Missing State = "Missing"
	// Closed means that the plan was carried out, failed, or was superseded.
	Closed State = "Closed"
	// Changed means that the Stack asks for something else now.
	Changed State = "Changed"
	// Stale means that the plan was out of date when it was to be carried out.
	Stale State = "Stale"
	// Expired means that it is too late.
	Expired State = "Expired"
	// Rejected means that an approver rejected the plan.
	Rejected State = "Rejected"
	// Pending means that an approval is missing.
	Pending State = "Pending"
	// Approved means that the plan may be carried out.
	Approved State = "Approved"
)

// Judge returns what may become of the plan.
func Judge(c Case) Verdict {
	plan, wanted := c.Plan, c.Reference
	switch {
	case plan == nil:
		return Verdict{Missing, "there is no plan"}
	case wanted != nil && !wanted.Names(plan):
		return Verdict{Missing, fmt.Sprintf("plan %q with this digest is not the one of the Stack", wanted.Name)}
	case wanted != nil && wanted.Enforce != "" && wanted.Enforce != plan.Enforce.OrDefault():
		return Verdict{Missing, fmt.Sprintf("plan %q is one with enforce: %s", plan.Name, plan.Enforce.OrDefault())}
	case IsConcluded(plan), plan.State == pulumiv1.PlanSuperseded:
		return Verdict{Closed, fmt.Sprintf("plan %q is %s", plan.Name, plan.State)}
	case plan.State == pulumiv1.PlanExpired, isOpen(plan) && isTooLate(plan, c.Now):
		return Verdict{Expired, fmt.Sprintf("plan %q has expired", plan.Name)}
	case c.Changed != "":
		return Verdict{Changed, fmt.Sprintf("plan %q was made for something else: %s", plan.Name, c.Changed)}
	case c.Policy != nil && c.Policy.Enforce.OrDefault() != plan.Enforce.OrDefault():
		return Verdict{Changed, fmt.Sprintf("plan %q was made before spec.approval.enforce was changed", plan.Name)}
	case plan.State == pulumiv1.PlanStale:
		return Verdict{Stale, fmt.Sprintf("plan %q is out of date", plan.Name)}
	case !isOpen(plan):
		// The state is one of a later version, or somebody has edited the status.
		return Verdict{Closed, fmt.Sprintf("plan %q is in the state %q", plan.Name, plan.State)}
	case plan.RejectedBy != "", plan.State == pulumiv1.PlanRejected:
		return Verdict{Rejected, fmt.Sprintf("%s rejected plan %q", cmp.Or(plan.RejectedBy, "somebody"), plan.Name)}
	case plan.State != pulumiv1.PlanApproved:
		return Verdict{Pending, fmt.Sprintf("plan %q is not approved", plan.Name)}
	}
	return Verdict{State: Approved}
}

// IsConcluded reports whether the result of the plan, or of the attempt to make it, is the last update of the Stack: nothing is left to do
// about the plan.
func IsConcluded(plan *pulumiv1.PlanStatus) bool {
	return plan.State == pulumiv1.PlanApplied || plan.State == pulumiv1.PlanFailed
}

// IsMadeAgain reports whether the plan was not carried out, or not to its end, so that another one is made of what is left. It has the approvals
// of this one if it changes the same: see CarryOver. A rejection prevents that.
func IsMadeAgain(plan *pulumiv1.PlanStatus) bool {
	return plan.State == pulumiv1.PlanFailed || plan.State == pulumiv1.PlanStale
}

// isOpen reports whether the plan can still be decided about.
func isOpen(plan *pulumiv1.PlanStatus) bool {
	return plan.State == pulumiv1.PlanPending || plan.State == pulumiv1.PlanApproved || plan.State == pulumiv1.PlanRejected
}

// Expiry returns when the plan expires, so that another one is made; nil when it does not. A rejected plan does not if somebody asked for the
// change: the same plan would be shown again and again.
func Expiry(plan *pulumiv1.PlanStatus) *metav1.Time {
	if plan.RejectedBy != "" && plan.Cause == pulumiv1.PlanForChange {
		return nil
	}
	return plan.ExpiresAt
}

func isTooLate(plan *pulumiv1.PlanStatus, now time.Time) bool {
	expiry := Expiry(plan)
	return expiry != nil && !now.Before(expiry.Time)
}

// Saved returns the verdict on the plan that an Update saved: Missing when it has none, Changed when its digest is another one, and Approved
// when it has exactly this plan.
func Saved(update *autov1alpha1.Update, digest string) Verdict {
	saved := update.Status.Plan
	switch {
	case !update.SavesPlan():
		return Verdict{Missing, fmt.Sprintf("Update %q makes no plan", update.Name)}
	case saved == nil || !update.IsComplete() || update.HasFailed():
		return Verdict{Missing, fmt.Sprintf("Update %q has not saved a plan", update.Name)}
	case saved.Digest != digest:
		return Verdict{Changed, fmt.Sprintf("the digest of plan %q is %s", update.Name, saved.Digest)}
	case saved.CalculateDigest() != digest:
		return Verdict{Changed, fmt.Sprintf("plan %q has been changed: its digest is not that of its parts", update.Name)}
	}
	return Verdict{State: Approved}
}
