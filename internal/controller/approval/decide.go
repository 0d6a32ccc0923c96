package approval

import (
	"fmt"
	"slices"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// observation is everything that a decision is made from.
type observation struct {
	now      time.Time
	approval *autov1alpha1.Approval
	// update is the Update that the Approval names; nil when there is none.
	update *autov1alpha1.Update
	// rollout is the StackRollout that the Approval names; nil when there is none. For a StackRollout, nothing else is read.
	rollout *autov1alpha1.StackRollout
	// stack is the Stack whose plan that Update made; nil when there is none.
	stack *pulumiv1.Stack
}

// age is how old the Approval is.
func (o *observation) age() time.Duration { return o.now.Sub(o.approval.CreationTimestamp.Time) }

// verdict is the final decision on an Approval.
type verdict struct {
	accepted        bool
	reason, message string
	// after is when to decide again, if it is too early for a decision; zero when this is the decision.
	after time.Duration
}

// An Approval can be created before its Stack has recorded the plan, or before its StackRollout has seen the commit. The controller then asks
// again, at first after shortestWait and at most after longestWait, until the Approval is maxUnseen old.
const (
	shortestWait = 500 * time.Millisecond
	longestWait  = 30 * time.Second
	maxUnseen    = 10 * time.Minute
)

// decide decides on an Approval.
func decide(o observation) verdict {
	if o.approval.Spec.Rollout != "" {
		return decideOnRevision(o)
	}
	return decideOnPlan(o)
}

// decideOnRevision decides on an Approval of a revision that a StackRollout rolls out. The Approval was created by a user who saw that it does.
func decideOnRevision(o observation) verdict {
	spec := &o.approval.Spec
	refuse := func(reason, format string, args ...any) verdict {
		return verdict{reason: reason, message: fmt.Sprintf(format, args...) + "; see status.target of the StackRollout, and create another Approval"}
	}
	if o.rollout == nil {
		return refuse(pulumiv1.RolloutNotFoundReason, "there is no StackRollout %q in this namespace", spec.Rollout)
	}
	target, is := o.rollout.Status.Target, autov1alpha1.RolloutRevision{Revision: spec.Revision}
	isTarget, age := target != nil && waves.IsNameOfTarget(spec.Revision, &o.rollout.Status), o.age()
	switch {
	case !isTarget && age < maxUnseen && waves.IsWhole(spec.Revision) && !wasTarget(&o.rollout.Status, is):
		return verdict{after: backoff.Proportional(age, shortestWait, longestWait)} // a pipeline may be faster than the source
	case !isTarget:
		return refuse(autov1alpha1.RevisionNotTargetReason, "StackRollout %q does not roll out revision %q now", spec.Rollout, spec.Revision)
	case spec.Wave != "" && !slices.ContainsFunc(o.rollout.Spec.Waves, func(wave autov1alpha1.RolloutWave) bool { return wave.Name == spec.Wave }):
		return refuse(autov1alpha1.WaveNotFoundReason, "StackRollout %q has no wave %q", spec.Rollout, spec.Wave)
	}
	what := "all waves"
	if spec.Wave != "" {
		what = fmt.Sprintf("wave %q", spec.Wave)
	}
	return verdict{accepted: true, reason: autov1alpha1.ApprovalCountsReason,
		message: fmt.Sprintf("%s of %s for %s of StackRollout %q by %s", spec.Decision, target.Revision, what, spec.Rollout, spec.By)}
}

// wasTarget reports whether the StackRollout has rolled out the revision before.
func wasTarget(status *autov1alpha1.StackRolloutStatus, revision autov1alpha1.RolloutRevision) bool {
	return status.Stable != nil && waves.Same(*status.Stable, revision) ||
		slices.ContainsFunc(status.Earlier, func(earlier autov1alpha1.RolloutRevision) bool { return waves.Same(earlier, revision) })
}

// decideOnPlan decides on an Approval of a plan. The Approval was created by a user who saw the plan, so the plan has to be older and the digest has to be
// that of the plan.
func decideOnPlan(o observation) verdict {
	spec := &o.approval.Spec
	refuse := func(reason, format string, args ...any) verdict {
		return verdict{reason: reason, message: fmt.Sprintf(format, args...) + "; see status.plan of the Stack, and create another Approval"}
	}
	switch {
	case o.update == nil:
		return refuse(autov1alpha1.PlanNotFoundReason, "there is no Update %q", spec.Update)
	case o.approval.CreationTimestamp.Before(&o.update.CreationTimestamp):
		return refuse(autov1alpha1.PlanNotFoundReason, "the Approval is older than the plan %q", spec.Update)
	}
	switch saved := plans.Saved(o.update, spec.Digest); {
	case saved.State == plans.Missing:
		return refuse(autov1alpha1.PlanNotFoundReason, "%s", saved.Problem)
	case saved.State == plans.Changed:
		return refuse(autov1alpha1.DigestMismatchReason, "%s", saved.Problem)
	case o.stack == nil:
		return refuse(autov1alpha1.PlanNotFoundReason, "Update %q is not one of a Stack", spec.Update)
	}
	plan, current := o.stack.Status.Plan, o.stack.Status.CurrentUpdate
	age := o.age()
	switch unseen := current != nil && current.UID == o.update.UID || plan == nil && current == nil; {
	case unseen && age < maxUnseen:
		return verdict{after: backoff.Proportional(age, shortestWait, longestWait)}
	case unseen:
		return refuse(autov1alpha1.PlanNotFoundReason, "Stack %q has not recorded plan %q", o.stack.Name, spec.Update)
	}
	reference := &plans.Reference{Name: spec.Update, Digest: spec.Digest, UID: o.update.UID}
	if spec.Decision == autov1alpha1.ApprovalReject && reference.Names(plan) && plans.IsMadeAgain(plan) {
		return verdict{accepted: true, reason: autov1alpha1.ApprovalCountsReason,
			message: fmt.Sprintf("%s of what is left of plan %q of Stack %q by %s: it needs an approval of its own", spec.Decision, spec.Update, o.stack.Name, spec.By)}
	}
	found := plans.Judge(plans.Case{Plan: plan, Policy: o.stack.Spec.Approval, Now: o.now, Reference: reference})
	switch found.State {
	case plans.Approved, plans.Pending:
	case plans.Rejected:
		if spec.Decision == autov1alpha1.ApprovalApprove {
			return refuse(autov1alpha1.PlanRejectedReason, "%s, and only another plan can be approved", found.Problem)
		}
	case plans.Expired:
		return refuse(autov1alpha1.PlanExpiredReason, "%s", found.Problem)
	default:
		return refuse(autov1alpha1.PlanSupersededReason, "%s", found.Problem)
	}
	return verdict{accepted: true, reason: autov1alpha1.ApprovalCountsReason,
		message: fmt.Sprintf("%s of plan %q of Stack %q by %s", spec.Decision, spec.Update, o.stack.Name, spec.By)}
}
