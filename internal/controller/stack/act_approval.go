package stack

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
)

// planUpdate turns the Update of a change into one that only makes a plan of the change.
func planUpdate(update *autov1alpha1.Update, stack *pulumiv1.Stack, d decision) {
	if update.Spec.Type == autov1alpha1.UpdateTypeDestroy {
		update.Spec.PreviewOnly = new(true)
	} else {
		update.Spec.Type = autov1alpha1.UpdateTypePreview
	}
	update.Spec.SavePlan, update.Spec.PlanEnforcement = new(true), stack.Spec.Approval.Enforce.OrDefault()
	// The Update is kept as long as its plan may be carried out. After that it is removed like any old Update.
	update.Spec.TTLAfterCompleted = nil
	metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.PlanCauseAnnotation, string(d.cause))
}

// applyPlan turns the Update of a change into one that carries out the plan in the status. The options that were requested when the plan
// was made apply, not those that are requested now.
func (r *Reconciler) applyPlan(ctx context.Context, update *autov1alpha1.Update, stack *pulumiv1.Stack) error {
	plan := stack.Status.Plan
	planned, err := r.getUpdate(ctx, types.NamespacedName{Namespace: stack.Namespace, Name: plan.Name})
	if err != nil {
		return err
	}
	if planned == nil || !isPlanOf(stack, planned) {
		return errOutdated
	}
	constrainToPlan(update, plan, planned)
	return nil
}

// constrainToPlan makes the Update carry out the plan, with the options and the source that the plan was made with.
func constrainToPlan(update *autov1alpha1.Update, plan *pulumiv1.PlanStatus, planned *autov1alpha1.Update) {
	spec := &update.Spec
	spec.Refresh, spec.ExpectNoRefreshChanges, spec.Source = planned.Spec.Refresh, planned.Spec.ExpectNoRefreshChanges, planned.Spec.Source
	spec.Plan = &autov1alpha1.PlanReference{Name: plan.Name, Digest: plan.Digest, Enforce: plan.Enforce}
}

// recordPlanStart records that a plan is being made, which supersedes the plan in the status, or that the plan in the status is being
// carried out.
func recordPlanStart(o *observation, d decision) {
	switch plan := o.stack.Status.Plan; {
	case plan == nil:
	case d.applies:
		acceptCommit(o)
	case d.plans:
		forgetWithdrawn(o)
		if plan.State == pulumiv1.PlanPending || plan.State == pulumiv1.PlanApproved || plan.State == pulumiv1.PlanRejected {
			plan.State = pulumiv1.PlanSuperseded
		}
	}
}

// forgetWithdrawn forgets the approvals of the plan in the status if somebody has deleted its Update, or edited it, which withdraws the plan:
// also one that failed or was out of date.
func forgetWithdrawn(o *observation) {
	if plan := o.stack.Status.Plan; plan != nil && o.planGone {
		plan.Approvals = nil
	}
}

// recordPlan records in the status the end of an Update that made a plan or carried one out. If it returns false, the caller records the
// end as the result of an ordinary update, too.
func (r *Reconciler) recordPlan(ctx context.Context, o *observation, update *autov1alpha1.Update) (done bool, err error) {
	stack := o.stack
	plan := stack.Status.Plan
	if plan != nil && update.Status.StartTime != nil && !update.ChangesNothing() {
		// Without a plan, nobody knows which values the Update had.
		plan.ApprovedValuesDigest = ""
		if update.Spec.Plan != nil && update.Spec.Plan.Name == plan.Name {
			plan.ApprovedValuesDigest = plan.ValuesDigest
		}
	}
	if plan != nil && update.Spec.Plan != nil && update.Status.StartTime == nil && !update.WasLockedOut() {
		// What was approved was not even begun, so no later plan is the rest of it.
		plan.Approvals = nil
	}
	switch {
	case update.WasStale():
		// The Update changed nothing, and this is not a failure. Another plan is made.
		recordNotRun(stack, update)
		recordStale(stack, update, o.now)
		stack.Status.CurrentUpdate = nil
		return true, nil
	case update.SavesPlan() && !update.HasFailed():
		if err := r.recordSavedPlan(ctx, o, update); err != nil {
			return false, err
		}
		stack.Status.CurrentUpdate = nil
		return true, nil
	case plan == nil:
	case update.SavesPlan():
		// The next plan could not be made. A plan that has ended stays what it is: the approvals of one that was carried out are used up. One that
		// was not begun has no rest that a later plan could be.
		if !plans.IsConcluded(plan) {
			plan.State, plan.Update = pulumiv1.PlanFailed, ""
		}
	case update.Spec.Plan == nil || update.Spec.Plan.Name != plan.Name:
		// The Update does not carry out this plan: it was created before spec.approval was set, or after it was removed. The approvals are not about
		// what it may have left half done.
		stack.Status.Plan = nil
	case update.WasLockedOut():
		plan.Update = update.Name
	case update.HasFailed():
		plan.State, plan.Update = pulumiv1.PlanFailed, update.Name
	default:
		plan.State, plan.Update = pulumiv1.PlanApplied, update.Name
	}
	return false, nil
}

// recordStale records that a plan was out of date when it was to be carried out, or as soon as it was made. The approvals stay in the
// status, so that a plan with equal changes can take them over, see plans.CarryOver. Those of a plan that was carried out are used up, and what
// asked for it does not ask for the next one.
func recordStale(stack *pulumiv1.Stack, update *autov1alpha1.Update, now time.Time) {
	plan := stack.Status.Plan
	if plan == nil || plan.State == pulumiv1.PlanApplied {
		plan = newPlan(stack, update)
		stack.Status.Plan = plan
	}
	plan.State, plan.Update = pulumiv1.PlanStale, update.Name
	plan.Stale++
	plan.StaleSince = new(metav1.NewTime(now).Rfc3339Copy())
}

// newPlan returns the status of the plan that the current Update makes, without what depends on the content of the plan. The inputs and the
// operation of the plan are those in the status, because anybody who may patch Updates can change their annotations.
func newPlan(stack *pulumiv1.Stack, update *autov1alpha1.Update) *pulumiv1.PlanStatus {
	current := stack.Status.CurrentUpdate
	plan := &pulumiv1.PlanStatus{
		Name: update.Name, UID: update.UID, State: pulumiv1.PlanPending, Operation: pulumiv1.ApprovedUp,
		Cause:        cmp.Or(current.Cause, pulumiv1.PlanForChange),
		Enforce:      update.Spec.PlanEnforcement.OrDefault(),
		Drift:        current.Drift,
		UpdateInputs: current.UpdateInputs,
	}
	if earlier := stack.Status.Plan; earlier != nil {
		plan.ApprovedValuesDigest = earlier.ApprovedValuesDigest
	}
	if update.Status.InputValuesDigest != "" {
		plan.InputValuesDigest, plan.InputVersionsDigest = update.Status.InputValuesDigest, update.Status.InputVersionsDigest
	}
	switch {
	case update.Spec.Type == autov1alpha1.UpdateTypeDestroy:
		plan.Operation = pulumiv1.ApprovedDestroy
	case plan.Drift != "":
		plan.Operation = pulumiv1.ApprovedDriftCorrection
	}
	if update.Spec.Message != nil {
		plan.Trigger = *update.Spec.Message
	}
	return plan
}

// planExpiry is how long a plan can be approved and carried out.
func planExpiry(stack *pulumiv1.Stack) time.Duration {
	if policy := stack.Spec.Approval; policy != nil && policy.ExpiresAfter.Duration != 0 {
		return policy.ExpiresAfter.Duration
	}
	return pulumiv1.DefaultApprovalExpiry
}

// recordSavedPlan records a new plan in the status. The plan takes over the approvals of the plan before it where plans.CarryOver permits that.
func (r *Reconciler) recordSavedPlan(ctx context.Context, o *observation, update *autov1alpha1.Update) error {
	plan, saved := newPlan(o.stack, update), update.Status.Plan
	if saved == nil {
		return fmt.Errorf("the update %s saved no plan", update.Name)
	}
	plan.Digest, plan.ChangesDigest, plan.InputsDigest, plan.ValuesDigest = saved.Digest, saved.ChangesDigest, saved.InputsDigest, saved.ValuesDigest
	plan.Summary, plan.Changes, plan.Destructive = countChanges(update.Status.ResourceChanges)
	plan.ExpiresAt = new(metav1.NewTime(o.now.Add(planExpiry(o.stack))).Rfc3339Copy())
	earlier := o.stack.Status.Plan
	forgetWithdrawn(o) // perhaps while the next one was made
	var changes, earlierChanges []autov1alpha1.ResourceChange
	if earlier != nil && earlier.State == pulumiv1.PlanFailed && len(earlier.Approvals) > 0 && earlier.ChangesDigest != plan.ChangesDigest {
		var err error
		if changes, err = r.allChanges(ctx, o.stack, plan); err != nil {
			return err
		}
		if earlierChanges, err = r.allChanges(ctx, o.stack, earlier); err != nil {
			return err
		}
	}
	plans.CarryOver(plan, earlier, earlierChanges, changes, o.now)
	o.stack.Status.Plan = plan
	o.approvals, o.planGone = nil, false
	return nil
}

// allChanges returns what a plan would change; nil when that is not known, or not completely, or when another Update has the name of the one
// that made the plan. It reads the API server, because the cache leaves the changes out.
func (r *Reconciler) allChanges(ctx context.Context, stack *pulumiv1.Stack, plan *pulumiv1.PlanStatus) ([]autov1alpha1.ResourceChange, error) {
	update, err := r.liveUpdate(ctx, types.NamespacedName{Namespace: stack.Namespace, Name: plan.Name})
	if err != nil || update == nil || update.UID != plan.UID || update.Status.OmittedChanges > 0 {
		return nil, err
	}
	return update.Status.Changes, nil
}

// awaitApproval shows a plan that waits for approval or was rejected. A plan that nobody asked for leaves the Stack ready.
func (r *Reconciler) awaitApproval(o *observation, d decision) outcome {
	stack, plan := o.stack, o.stack.Status.Plan
	acceptCommit(o)
	acceptUnchanged(o)
	if d.quiet {
		remainReady(stack)
	} else {
		markStalled(stack, d.reason, d.message)
	}
	result := outcome{after: d.after, announcesProblem: true}
	if shownPlan(stack) == o.shownPlan {
		return result
	}
	metadata := planMetadata(plan)
	if d.reason == pulumiv1.PlanRejectedReason && plansNewRevision(stack) {
		metadata[pulumiv1.GroupVersion.Group+"/"+eventv1.MetaRevisionKey] = plan.Revision
	}
	result.addEvent(func() { r.AnnotatedEventf(stack, metadata, corev1.EventTypeWarning, d.reason, "%s", d.message) })
	return result
}

// shownPlan returns the name and the state of the plan in the status; empty when there is none.
func shownPlan(stack *pulumiv1.Stack) string {
	if plan := stack.Status.Plan; plan != nil {
		return plan.Name + " " + string(plan.State)
	}
	return ""
}

// plansNewRevision reports whether the plan in the status is one of a revision, and not of what else is done with the revision that is deployed.
func plansNewRevision(stack *pulumiv1.Stack) bool {
	plan := stack.Status.Plan
	return plan.Operation == pulumiv1.ApprovedUp && plan.Revision != "" && plan.Revision != stack.Status.LastAppliedRevision
}

// planMetadata returns the metadata of an event about a plan, which notification-controller forwards. Its git providers set the status of the
// revision of each warning, and a plan that waits says nothing about what the revision contains: so the revision has another key here.
func planMetadata(plan *pulumiv1.PlanStatus) map[string]string {
	prefix := pulumiv1.GroupVersion.Group + "/plan"
	metadata := map[string]string{prefix: plan.Name, prefix + "-digest": plan.Digest, prefix + "-summary": plan.Summary}
	if plan.Revision != "" {
		metadata[prefix+"-revision"] = plan.Revision
	}
	return metadata
}

// describeApprovers names the users who approved the plan, or says why it needs no approval.
func describeApprovers(plan *pulumiv1.PlanStatus, policy *pulumiv1.ApprovalPolicy) string {
	if len(plan.Approvals) == 0 {
		return "without approval: " + plans.NeedsNoApproval(policy, plan)
	}
	var names []string
	for _, approval := range plan.Approvals {
		name := approval.By
		if approval.Reason != "" {
			name += " (" + approval.Reason + ")"
		}
		names = append(names, name)
	}
	return "approved by " + strings.Join(names, ", ")
}
