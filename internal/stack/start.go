package stack

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/source"
)

// startUpdate creates the Update that was decided on, once its artifact is in the store.
func (r *Reconciler) startUpdate(ctx context.Context, o *observation, d decision) (outcome, error) {
	blocked, err := r.ensureArtifact(ctx, o, d)
	if err != nil {
		return outcome{}, err
	}
	if blocked != nil {
		if d.kind == autov1alpha1.UpdateTypeDestroy && blocked.action != actionFetch && blocked.action != actionLook {
			blocked.message = cannotDestroy(o.stack, blocked.message)
		}
		return r.act(ctx, o, *blocked)
	}
	if err := r.applyWorkspace(ctx, o, o.artifact != nil); err != nil {
		return r.refused(o, err)
	}
	update, err := r.createUpdate(ctx, o, d)
	if err != nil {
		return r.refused(o, err)
	}
	r.recordStart(o, d, update)
	shown := r.showProgress(o, update)
	if update.IsComplete() {
		// An earlier reconcile created it and could not write so: its end may have been told already, to no effect.
		shown.after = conflictInterval
	}
	return shown, nil
}

// ensureArtifact returns nil when the artifact is in the store and its content is known, or none is needed, and otherwise what to
// show meanwhile. The end of a download, a checkout or a reading wakes the Stack.
func (r *Reconciler) ensureArtifact(ctx context.Context, o *observation, d decision) (*decision, error) {
	if o.artifact == nil {
		return nil, nil
	}
	stored, err := r.requestArtifact(ctx, o)
	switch {
	case err != nil && d.kind == autov1alpha1.UpdateTypeDestroy && destroyableFromState(o.stack):
		// Resources can be destroyed from the state alone.
		o.artifact = nil
		return nil, nil
	case err != nil:
		return fetchProblem(*o, err), nil
	case stored == "":
		return &decision{action: actionFetch, wake: byFetch, message: "fetching the artifact " + describeRevision(o.artifact)}, nil
	case d.kind == autov1alpha1.UpdateTypeDestroy:
		return nil, nil
	}
	if err := r.readContent(o); err != nil {
		return nil, err
	}
	if o.content.digest == "" {
		return &decision{action: actionFetch, wake: byFetch, message: "looking through the files of the artifact " + describeRevision(o.artifact)}, nil
	}
	return nil, nil
}

// fetchProblem tells what the source's next artifact may mend from what needs a human. Either way it is tried again: a file
// that was published wrongly may be right later under the same digest, and a checkout may succeed with other credentials.
func fetchProblem(o observation, err error) *decision {
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		d := blockedBySource(o, problem)
		d.wake, d.after = byTime, o.waitInterval
		return d
	}
	d := &decision{action: actionWait, wake: byTime, reason: pulumiv1.ArtifactFetchFailedReason, message: err.Error()}
	kind, _ := fetchErrorKind(err)
	switch kind {
	case artifact.Integrity:
		d.reason = pulumiv1.ArtifactDigestMismatchReason
	case artifact.TooLarge:
		d.action, d.reason = actionStall, pulumiv1.ArtifactTooLargeReason
	case artifact.Unusable:
		d.action, d.reason = actionStall, pulumiv1.ArtifactUnusableReason
	}
	d.after = fetchAgainAfter(o, d.reason)
	return d
}

// firstFetchWait is the time from a fetch that failed to the next one. It grows with the time for which the problem has been shown.
const firstFetchWait = 3 * time.Second

// fetchAgainAfter is half of the time for which the problem has been shown, within bounds: nothing has to be remembered for it.
func fetchAgainAfter(o observation, reason string) time.Duration {
	waited := time.Duration(0)
	if shown := conditions.Get(o.stack, meta.ReadyCondition); shown != nil && shown.Reason == reason {
		waited = o.now.Sub(shown.LastTransitionTime.Time)
	}
	return min(max(waited/2, firstFetchWait), max(o.waitInterval, firstFetchWait))
}

func fetchErrorKind(err error) (artifact.Kind, bool) {
	var fetchError *artifact.FetchError
	if errors.As(err, &fetchError) {
		return fetchError.Kind, true
	}
	return "", false
}

// createUpdate creates the Update, or finds the one that was created after the last one already, perhaps for other inputs. That one comes
// first: it makes room when it waits, and is recorded when it has run.
func (r *Reconciler) createUpdate(ctx context.Context, o *observation, d decision) (*autov1alpha1.Update, error) {
	update, err := desiredUpdate(o, d)
	if err != nil {
		return nil, err
	}
	err = r.Create(ctx, update, client.FieldOwner(fieldOwner))
	if err == nil {
		if !triesLockAgain(o.stack, d) {
			r.AnnotatedEventf(o.stack, eventMetadata(o.artifact, update), corev1.EventTypeNormal, eventUpdateDetected, "%s", d.message)
		}
		r.announceUnmatched(o)
		return update, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create the update %s: %w", update.Name, err)
	}
	existing := &autov1alpha1.Update{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(update), existing); err != nil {
		return nil, fmt.Errorf("read the update %s: %w", update.Name, err)
	}
	return existing, nil
}

// recordStart puts the Update into the status.
func (r *Reconciler) recordStart(o *observation, d decision, update *autov1alpha1.Update) {
	stack := o.stack
	follows(stack, update)
	if revision := stack.Status.CurrentUpdate.Revision; revision != "" {
		stack.Status.LastAttemptedRevision = revision
	}
	if d.kind != autov1alpha1.UpdateTypePreview {
		stack.Status.Deployed = true
	}
	if d.fresh && stack.Status.LastUpdate != nil {
		stack.Status.LastUpdate.Failures = 0
		stack.Status.LastUpdate.Interruptions = 0
		stack.Status.LastUpdate.Conflicts, stack.Status.LastUpdate.ConflictsSince = 0, nil
	}
}

// refused shows what the API server did not accept. A namespace that is being deleted accepts nothing any more.
func (r *Reconciler) refused(o *observation, err error) (outcome, error) {
	switch {
	case apierrors.IsConflict(err):
		return outcome{after: conflictInterval}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		markStalled(o.stack, pulumiv1.NamespaceTerminatingReason, inTerminatingNamespace(o.stack))
		return outcome{after: r.WaitInterval}, nil
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
		markStalled(o.stack, pulumiv1.WorkspaceFailedReason, err.Error())
		return outcome{after: r.WaitInterval}, nil
	}
	return outcome{err: err}, nil
}

// adopt puts an Update that exists into the status when a crash kept it out.
func adopt(o *observation) {
	if o.stack.Status.CurrentUpdate == nil {
		follows(o.stack, o.update)
	}
}

// follows makes the Update the current one, and notes the requests that it answers.
func follows(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	current := currentOf(update)
	stack.Status.CurrentUpdate = current
	if current.RequestedAt == requestedAt(stack) {
		handleFluxRequest(stack)
	}
	if current.ReconcileRequest == reconcileRequest(stack) {
		stack.Status.ObservedReconcileRequest = current.ReconcileRequest
	}
}

// handleRequests notes that the requests in the annotations were seen.
func handleRequests(stack *pulumiv1.Stack) {
	handleFluxRequest(stack)
	stack.Status.ObservedReconcileRequest = reconcileRequest(stack)
}

func handleFluxRequest(stack *pulumiv1.Stack) {
	// Flux's request to force a reconcile comes with a plain request of the same value, which is all that is needed here.
	meta.ShouldHandleForceRequest(stack)
	if token := requestedAt(stack); token != "" {
		stack.Status.LastHandledReconcileAt = token
	}
}
