package stack

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// act carries out one decision. It changes the Stack's status in memory; the caller writes it.
func (r *Reconciler) act(ctx context.Context, o *observation, d decision) (outcome, error) {
	switch d.action {
	case actionUpdate:
		return r.startUpdate(ctx, o, d)
	case actionSupersede:
		return r.supersede(ctx, o, d)
	case actionCancel:
		return r.cancelUpdate(ctx, o, d)
	case actionFollow:
		return r.follow(ctx, o)
	case actionSettle:
		return r.settle(ctx, o, d)
	case actionRelease:
		return outcome{}, r.release(ctx, o.stack, d.message)
	case actionWait:
		markWaiting(o.stack, d.reason, d.message)
	case actionAsk:
		return r.ask(ctx, o, d)
	case actionLook:
		if !d.quiet {
			markWorking(o.stack, d.message)
		}
	case actionFetch:
		return fetching(o, d), nil
	case actionStall:
		r.stall(o.stack, d)
	case actionRetry:
		retry(o, d)
	case actionSuspend:
		handleRequests(o.stack)
		showSuspended(o.stack)
	case actionRecord:
		return outcome{}, fmt.Errorf("update %s was recorded and is still there to be recorded", o.update.Name)
	}
	return outcome{after: d.after}, nil
}

// briefFetch is how long ago, to the second, an artifact must have been published before a Stack shows that it is being fetched:
// most are there sooner than such a status is written, and each write costs everybody who watches.
const briefFetch = 2 * time.Second

// fetching shows that the artifact is on its way, unless it was published just now or that is a detail of a periodic run.
func fetching(o *observation, d decision) outcome {
	if d.quiet {
		return outcome{after: d.after}
	}
	if left := briefFetch - time.Since(o.artifact.Published); left > 0 {
		return outcome{after: min(left, briefFetch)}
	}
	last := o.stack.Status.LastUpdate
	if last == nil || last.Generation != o.stack.Generation || last.LastAttemptedCommit != commitOf(o.artifact) {
		markWorking(o.stack, d.message)
	}
	return outcome{after: d.after}
}

// stall shows what a human has to mend, and says so once.
func (r *Reconciler) stall(stack *pulumiv1.Stack, d decision) {
	if !stalledFor(stack, d) {
		r.Event(stack, corev1.EventTypeWarning, stallEvent(d.reason), d.message)
	}
	handleRequests(stack)
	markStalled(stack, d.reason, d.message)
}

// retry shows a failure. After several of them the Stack is also stalled, though attempts go on.
func retry(o *observation, d decision) {
	stack := o.stack
	adoptReferences(o)
	advance(o)
	if d.reason == pulumiv1.UpdateFailedReason || d.reason == pulumiv1.UpdateConflictReason && lockedUntilStalled(stack.Status.LastUpdate, o.now) == 0 {
		markStalled(stack, d.reason, d.message)
		return
	}
	markWaiting(stack, d.reason, d.message)
}

// ask requests an update of a prerequisite that succeeded too long ago. The request names the update that is out of date, so that the same
// one is not asked for twice, whoever asks.
func (r *Reconciler) ask(ctx context.Context, o *observation, d decision) (outcome, error) {
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`, o.stale.version, pulumiv1.ReconcileRequestAnnotation, o.stale.request)
	required := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: o.stale.name.Namespace, Name: o.stale.name.Name}}
	err := r.Patch(ctx, required, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner(fieldOwner))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// It changed since it was looked at, and perhaps for the better.
		return outcome{after: conflictInterval}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("ask for an update of the prerequisite %s: %w", o.stale.name, err)
	}
	markWaiting(o.stack, d.reason, d.message)
	return outcome{after: d.after}, nil
}

// settle shows that the Stack is up to date. A new revision with the content that is deployed already needs no update.
func (r *Reconciler) settle(ctx context.Context, o *observation, d decision) (outcome, error) {
	advance(o)
	adoptReferences(o)
	markSettled(o.stack)
	done, err := r.reclaim(ctx, o)
	if err != nil {
		return outcome{err: err}, nil
	}
	if !done && (d.after == 0 || d.after > o.waitInterval) {
		d.after = o.waitInterval
	}
	return outcome{after: d.after}, nil
}

// supersede removes an Update that never ran. Its deletion wakes the Stack, which then makes one for the new inputs.
func (r *Reconciler) supersede(ctx context.Context, o *observation, d decision) (outcome, error) {
	if err := r.Delete(ctx, o.update, client.Preconditions{UID: &o.update.UID, ResourceVersion: &o.update.ResourceVersion}); client.IgnoreNotFound(err) != nil {
		return outcome{}, fmt.Errorf("remove the outdated update %s: %w", o.update.Name, err)
	}
	markWorking(o.stack, d.message)
	return outcome{}, nil
}

// follow shows how the current Update stands; its changes wake the Stack. A Workspace that disappeared is made again, for
// an Update that waits for it would wait for ever. One in trouble gets what the Stack asks for now, which may be the cure.
func (r *Reconciler) follow(ctx context.Context, o *observation) (outcome, error) {
	adopt(o)
	missing := o.workspace == nil && !o.update.HasStarted()
	if o.desired != nil && (missing || inTrouble(o.workspace)) {
		if err := r.applyWorkspace(ctx, o, o.update.Spec.Source != nil); err != nil {
			return r.refused(o, err)
		}
	}
	return r.showProgress(o, o.update), nil
}

// showProgress shows how far the Update is, or what keeps it from starting.
func (r *Reconciler) showProgress(o *observation, update *autov1alpha1.Update) outcome {
	if inTrouble(o.workspace) {
		return r.showTrouble(o.stack, troubleOf(o.workspace))
	}
	reason, message := waitingFor(update)
	switch {
	case reason != "" && update.Spec.Type == autov1alpha1.UpdateTypeDestroy:
		return r.showWaiting(o.stack, reason, message+"; "+orphanHint)
	case reason != "":
		return r.showWaiting(o.stack, reason, message)
	case meetsLockAgain(o.stack, update, o.now) > 0:
		return outcome{after: meetsLockAgain(o.stack, update, o.now)}
	case keepsReady(o.stack):
	case failsAgainAndAgain(o.stack):
		markStalled(o.stack, pulumiv1.UpdateFailedReason, describeAttempt(o.stack.Status.LastUpdate))
	default:
		markWorking(o.stack, whileDeleted(o.stack, update, progressOf(o.workspace, update)))
	}
	return outcome{}
}

// showWaiting shows a problem that keeps an update from starting. The event is recorded once for each reason, and only where
// somebody may have to help.
func (r *Reconciler) showWaiting(stack *pulumiv1.Stack, reason, message string) outcome {
	known := conditions.GetReason(stack, meta.ReadyCondition) == reason
	markWaiting(stack, reason, message)
	if known || reason == autov1alpha1.UpdateTransientFailureReason {
		return outcome{}
	}
	return outcome{then: func(context.Context) error {
		r.Event(stack, corev1.EventTypeWarning, reason, message)
		return nil
	}}
}

// release lets the Stack go.
func (r *Reconciler) release(ctx context.Context, stack *pulumiv1.Stack, proof string) error {
	before := stack.DeepCopy()
	controllerutil.RemoveFinalizer(stack, pulumiv1.Finalizer)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, stack, patch, client.FieldOwner(fieldOwner)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	r.Event(before, corev1.EventTypeNormal, eventStackReleased, "the stack was deleted: "+proof)
	return nil
}

// problemReasons are the reasons of a waiting Update that a user has to know about; any other one is a step on its way.
var problemReasons = []string{
	pulumiv1.SecretNotFoundReason,
	pulumiv1.ArtifactFetchFailedReason,
	pulumiv1.ArtifactDigestMismatchReason,
	pulumiv1.ArtifactTooLargeReason,
	pulumiv1.ArtifactUnusableReason,
	autov1alpha1.UpdateTransientFailureReason,
}

// waitingFor returns the problem that keeps an Update from starting; empty when it is on its way.
func waitingFor(update *autov1alpha1.Update) (reason, message string) {
	condition := apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateProgressing)
	if update.HasStarted() || condition == nil || !slices.Contains(problemReasons, condition.Reason) && !slices.Contains(source.Reasons, condition.Reason) {
		return "", ""
	}
	return condition.Reason, condition.Message
}

// progressOf is describeProgress for an Update that its controller may not have seen yet. In a workspace that is ready nothing
// holds it up, so the Stack says at once what it would say a moment later.
func progressOf(workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) string {
	if workspace != nil && conditions.IsTrue(workspace, autov1alpha1.WorkspaceReady) && len(update.Status.Conditions) == 0 {
		return processing(update)
	}
	return describeProgress(update)
}

func processing(update *autov1alpha1.Update) string {
	return fmt.Sprintf("stack is being processed: %s by update %s", update.Spec.Type, update.Name)
}

// describeProgress is one line about an Update that is on its way.
func describeProgress(update *autov1alpha1.Update) string {
	if update.HasStarted() {
		return processing(update)
	}
	condition := apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateProgressing)
	if condition == nil || condition.Message == "" {
		return "waiting for workspace readiness"
	}
	return "waiting for workspace readiness: " + condition.Message
}
