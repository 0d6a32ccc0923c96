package stack

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// act carries out one decision. It changes the Stack's status in memory; the caller writes it.
func (r *Reconciler) act(ctx context.Context, o *observation, d decision) (outcome, error) {
	if d.awaitsTurn {
		acceptCommit(o)
	}
	switch d.action {
	case actionUpdate:
		return r.startUpdate(ctx, o, d)
	case actionSupersede:
		return r.supersede(ctx, o, d)
	case actionCancel:
		return r.cancel(ctx, o, d)
	case actionFollow:
		return r.follow(ctx, o, d)
	case actionReady:
		return r.showReady(ctx, o, d)
	case actionRelease:
		return outcome{}, r.release(ctx, o.stack, d.message)
	case actionRequestDependency:
		return r.requestDependency(ctx, o, d)
	case actionAwaitApproval:
		return r.awaitApproval(o, d), nil
	case actionWait:
		switch {
		case d.quiet:
			return r.showReady(ctx, o, d)
		case d.reason == "":
			markProgressing(o.stack, d.message)
		default:
			markWaiting(o.stack, d.reason, d.message)
		}
	case actionFetch:
		if !d.quiet {
			markProgressing(o.stack, d.message)
		}
	case actionHold:
		return r.hold(o, d), nil
	case actionStall:
		return r.stall(o.stack, d), nil
	case actionRetry:
		retry(o, d)
		return outcome{after: d.after, announcesProblem: true}, nil // the result of the last attempt was announced
	case actionSuspend:
		handleRequests(o.stack)
		markSuspended(o.stack)
		dropSpecDigest(o.stack)
		// One that was suspended when it was created has nothing to show: nobody should take it for deployed.
		if conditions.Has(o.stack, meta.ReadyCondition) {
			acceptGeneration(o.stack)
		}
	default:
		return outcome{}, fmt.Errorf("action %q was not expected", d.action)
	}
	return outcome{after: d.after}, nil
}

// stall marks the Stack as Stalled with what a human has to fix. It records an event when the problem is new or the Stack was edited.
// What asks for the update is not recorded as handled: it is still to come.
func (r *Reconciler) stall(stack *pulumiv1.Stack, d decision) outcome {
	shown, reason := conditions.Get(stack, meta.StalledCondition), d.reason
	known := shown != nil && shown.Reason == reason && shown.Message == d.message && shown.ObservedGeneration == stack.Generation
	markStalled(stack, reason, d.message)
	if reason == pulumiv1.SpecInvalidReason {
		reason = eventConfigInvalid
	}
	result := r.warn(stack, known, reason, d.message)
	result.after = d.after
	return result
}

// hold shows that the windows of the Stack allow no update now. What asks for the update is not recorded as handled: it is still to come.
func (r *Reconciler) hold(o *observation, d decision) outcome {
	if d.quiet {
		acceptUnchanged(o)
		remainReady(o.stack)
		return outcome{after: d.after}
	}
	shown := conditions.Get(o.stack, meta.StalledCondition)
	known := shown != nil && shown.Reason == d.reason && shown.ObservedGeneration == o.stack.Generation
	markStalled(o.stack, d.reason, d.message)
	result := r.warn(o.stack, known, d.reason, d.message)
	result.after = d.after
	return result
}

// remainReady shows that the Stack is ready if its last update succeeded, although another one is to come.
func remainReady(stack *pulumiv1.Stack) {
	last := stack.Status.LastUpdate
	switch {
	case last == nil || last.State != pulumiv1.StackUpdateSucceeded:
	case !conditions.IsReady(stack):
		markReady(stack)
	case last.Generation == stack.Generation:
		acceptGeneration(stack) // an edit that needs no update
	}
}

// retry shows the failure of the last attempt in the conditions.
func retry(o *observation, d decision) {
	acceptInputs(o)
	if d.stalls {
		markStalled(o.stack, d.reason, d.message)
		return
	}
	markWaiting(o.stack, d.reason, d.message)
}

// requestDependency requests an update of a prerequisite that succeeded too long ago. The request names the update that is out of date,
// so that several dependents make one request.
func (r *Reconciler) requestDependency(ctx context.Context, o *observation, d decision) (outcome, error) {
	asked, err := r.askForUpdate(ctx, o.aged.name, o.aged.version, o.aged.request)
	switch {
	case err != nil:
		return outcome{}, err
	case !asked:
		return outcome{after: outdatedInterval}, nil
	case d.quiet:
		return r.showReady(ctx, o, d)
	}
	markWaiting(o.stack, d.reason, d.message)
	return outcome{after: d.after}, nil
}

// askForUpdate requests an update of another Stack, which was observed with the version. It returns false when that Stack has changed or is
// gone: the next decision may differ.
func (r *Reconciler) askForUpdate(ctx context.Context, name types.NamespacedName, version, request string) (asked bool, err error) {
	change := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`, version, pulumiv1.ReconcileRequestAnnotation, request)
	stack := &pulumiv1.Stack{Namespace: name.Namespace, Name: name.Name}
	err = r.Patch(ctx, stack, client.RawPatch(types.MergePatchType, []byte(change)), patch.FieldOwner)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for an update of the stack %s: %w", name, err)
	}
	return true, nil
}

// showReady shows that the Stack is up to date. A new revision with the content that is deployed already needs no update.
func (r *Reconciler) showReady(ctx context.Context, o *observation, d decision) (outcome, error) {
	acceptInputs(o)
	markReady(o.stack)
	inUse, err := r.reclaimWorkspace(ctx, o)
	if inUse {
		d.after = soonest(d.after, o.waitInterval)
	}
	return outcome{after: d.after}, err
}

// supersede deletes an Update that has not started, as far as its status says. The Update controller ends what runs nevertheless. The deletion
// wakes the Stack, and the next reconcile creates an Update for the new inputs.
func (r *Reconciler) supersede(ctx context.Context, o *observation, d decision) (outcome, error) {
	err := r.Delete(ctx, o.update, client.Preconditions{UID: &o.update.UID, ResourceVersion: &o.update.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return outcome{}, fmt.Errorf("remove the outdated update %s: %w", o.update.Name, err)
	}
	if plan := o.stack.Status.Plan; plan != nil && o.update.Spec.Plan != nil && lostSource(*o) {
		// The same change is planned with the artifact that there is, and an equal plan keeps the approvals.
		recordStale(o.stack, o.update, o.now)
	}
	if err == nil {
		recordWithdrawal(o.stack, o.update)
	}
	markProgressing(o.stack, d.message)
	return outcome{}, nil
}

// recordWithdrawal records that the current Update is being deleted. Somebody may have asked for it, and is still to get it; who asked for a plan
// has it. Whether it ran is seen later, see restoreStatus, and does not matter if it changes nothing.
func recordWithdrawal(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	stack.Status.CurrentUpdate.Withdrawn = update.ChangesNothing()
	if update.Spec.Plan == nil {
		askAgain(stack)
	}
}

// cancel copies the cancel annotation to the Update. The end of the Update wakes the Stack. The Update is not deleted, because its result
// has to be recorded.
func (r *Reconciler) cancel(ctx context.Context, o *observation, d decision) (outcome, error) {
	before := o.update.DeepCopy()
	metav1.SetMetaDataAnnotation(&o.update.ObjectMeta, pulumiv1.CancelUpdateAnnotation, "true")
	err := patch.Object(ctx, r.Client, before, o.update)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// The Update made progress, ended or was deleted meanwhile.
		return outcome{after: outdatedInterval}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("cancel the update %s: %w", o.update.Name, err)
	}
	markProgressing(o.stack, d.message)
	return outcome{}, nil
}

// follow shows the progress of the current Update. It applies the Workspace first, and has the outputs that the Update waits for stored again, if
// the decision says so.
func (r *Reconciler) follow(ctx context.Context, o *observation, d decision) (outcome, error) {
	if d.requestsOutputs {
		asked, err := r.askForUpdate(ctx, o.lost.name, o.lost.version, o.lost.request)
		switch {
		case apierrors.IsForbidden(err): // in a namespace in which this controller only reads
		case err != nil:
			return outcome{}, err
		case !asked:
			d.after = soonest(d.after, outdatedInterval)
		}
	}
	if d.appliesWorkspace {
		if err := r.applyWorkspace(ctx, o, o.update.Spec.Source != nil); err != nil {
			return r.handleRejection(o, err)
		}
	}
	shown := r.showProgress(o, o.update)
	shown.hiddenFor, shown.after = r.hiddenFor(o, o.update), soonest(shown.after, d.after)
	return shown, nil
}

// release removes the finalizer.
func (r *Reconciler) release(ctx context.Context, stack *pulumiv1.Stack, proof string) error {
	before := stack.DeepCopy()
	controllerutil.RemoveFinalizer(stack, pulumiv1.Finalizer)
	if err := patch.Object(ctx, r.Client, before, stack); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	r.Event(before, corev1.EventTypeNormal, eventStackReleased, "the stack was deleted: "+proof)
	return nil
}

// reclaimWorkspace deletes the Workspace of a Stack that is up to date, if spec.workspaceReclaimPolicy says so. It keeps the Workspace and
// returns inUse while an Update that is not complete uses it: a check for drift, or an Update that somebody else created.
func (r *Reconciler) reclaimWorkspace(ctx context.Context, o *observation) (inUse bool, err error) {
	if o.stack.GetWorkspaceReclaimPolicy() != pulumiv1.WorkspaceReclaimDelete || o.workspace == nil {
		return false, nil
	}
	user, err := r.updateIn(ctx, o.workspace, func(update *autov1alpha1.Update) bool { return !update.IsComplete() })
	if err != nil || user != "" {
		return true, err
	}
	err = r.Delete(ctx, o.workspace, client.Preconditions{UID: &o.workspace.UID})
	if err == nil {
		r.Event(o.stack, corev1.EventTypeNormal, eventWorkspaceDeleted, "the workspace was deleted as the reclaim policy asks")
	} else if !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete the workspace: %w", err)
	}
	return false, nil
}
