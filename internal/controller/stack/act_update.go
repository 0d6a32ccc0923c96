package stack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/template"
)

// defaultUpdateTTL is how long a finished Update stays, unless the update template says otherwise.
const defaultUpdateTTL = 24 * time.Hour

// startUpdate creates the Update that was decided on.
func (r *Reconciler) startUpdate(ctx context.Context, o *observation, d decision) (outcome, error) {
	if d.withoutSource {
		o.artifact = nil
	}
	if err := r.applyWorkspace(ctx, o, o.artifact != nil); err != nil {
		return r.handleRejection(o, err)
	}
	update, err := r.createUpdate(ctx, o, d)
	if err != nil {
		return r.handleRejection(o, err)
	}
	recordPlanStart(o, d)
	recordStart(o.stack, d, update)
	if update.HasStarted() {
		// It was created earlier, and the status did not say so.
		restoreInputs(o.stack, update)
	}
	shown := r.showProgress(o, update)
	shown.hiddenFor = r.hiddenFor(o, update)
	if update.IsComplete() {
		// An earlier reconcile created the Update and could not write the status. The Update has ended, and perhaps no watch wakes the Stack any
		// more.
		shown.after = outdatedInterval
	}
	return shown, nil
}

// hiddenFor returns for how much longer the status may leave out that the update is in progress, see ShowAfter.
func (r *Reconciler) hiddenFor(o *observation, update *autov1alpha1.Update) time.Duration {
	if update.IsComplete() || o.stack.Spec.Approval != nil {
		// With spec.approval, the status is what proves that the controller created the Update, see isTrusted.
		return 0
	}
	since := update.CreationTimestamp.Time
	if start := update.Status.StartTime; start != nil && start.After(since) {
		since = start.Time // it waited for its turn, and that was shown
	}
	return backoff.Left(r.ShowAfter, since, o.now)
}

// createUpdate creates the Update. If an Update that follows the last recorded one exists already, perhaps with other inputs, createUpdate
// returns that one: it has to be replaced, if it waits, or recorded, if it has run, before there can be another one. See updateName.
func (r *Reconciler) createUpdate(ctx context.Context, o *observation, d decision) (*autov1alpha1.Update, error) {
	update, err := desiredUpdate(o, d)
	if err != nil {
		return nil, err
	}
	if d.applies {
		err = r.applyPlan(ctx, update, o.stack)
	}
	if err != nil {
		return nil, err
	}
	update.Labels = r.Shard.Follow(update.Labels, o.stack)
	if from := o.artifact; r.Traced && from != nil && !from.Published.IsZero() && from.Revision != o.stack.Status.LastAttemptedRevision {
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.SourceTimeAnnotation, from.Published.UTC().Format(time.RFC3339))
	}
	err = r.Create(ctx, update, patch.FieldOwner)
	if err == nil {
		r.announceStart(o, d, update)
		return update, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create the update %s: %w", update.Name, err)
	}
	existing, err := r.liveUpdate(ctx, client.ObjectKeyFromObject(update))
	switch {
	case err != nil:
		return nil, err
	case existing == nil:
		return nil, errOutdated
	case !o.stack.Owns(existing):
		return nil, notOwned(o.stack, autov1alpha1.UpdateKind, existing)
	case !isTrusted(o.stack, existing):
		return nil, r.removeUnknown(ctx, o.stack, existing)
	}
	// The controller of another shard may have created the Update at the moment when the Stack moved to this shard.
	return existing, r.adopt(ctx, o.stack, existing)
}

// removeUnknown removes an Update that has the name of the next Update of a Stack with spec.approval, and that the status of the Stack does
// not know: somebody else created it, or the controller did and could not write the status. Such an Update changes nothing, or has not
// started. It always returns an error: errOutdated if nothing else is wrong, because the Stack has to be observed again.
func (r *Reconciler) removeUnknown(ctx context.Context, stack *pulumiv1.Stack, update *autov1alpha1.Update) error {
	// The cache may not have the status yet that names the Update.
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(stack), live); err != nil {
		return fmt.Errorf("read the stack again: %w", err)
	}
	if live.ResourceVersion != stack.ResourceVersion || !update.DeletionTimestamp.IsZero() {
		return errOutdated
	}
	if err := r.Delete(ctx, update, client.Preconditions{UID: &update.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the update %s, which is not known: %w", update.Name, err)
	}
	r.Eventf(stack, corev1.EventTypeWarning, eventUpdateRemoved, "removed Update %s, which has the name of the next update of this Stack: "+
		"the status does not say that the controller created it", update.Name)
	return errOutdated
}

// recordStart records in the status that the Update is in progress.
func recordStart(stack *pulumiv1.Stack, d decision, update *autov1alpha1.Update) {
	setCurrent(stack, update)
	if revision := stack.Status.CurrentUpdate.Revision; revision != "" {
		stack.Status.LastAttemptedRevision = revision
	}
	if d.kind != autov1alpha1.UpdateTypePreview && !d.plans {
		stack.Status.CurrentUpdate.First = !stack.Status.Deployed && d.kind == autov1alpha1.UpdateTypeUp
		stack.Status.Deployed = true
	}
	if last := stack.Status.LastUpdate; d.fresh && last != nil {
		last.Failures, last.Interruptions, last.Conflicts, last.ConflictsSince = 0, 0, 0, nil
	}
}

// handleRejection shows why the API server rejected an object. A namespace that is being deleted accepts no new objects.
func (r *Reconciler) handleRejection(o *observation, err error) (outcome, error) {
	switch {
	case apierrors.IsConflict(err), errors.Is(err, errOutdated):
		return outcome{after: outdatedInterval}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		markStalled(o.stack, pulumiv1.NamespaceTerminatingReason, inTerminatingNamespace(o.stack))
	case goesByItself(err):
		markProgressing(o.stack, err.Error())
	case errors.As(err, new(*notOwnedError)), errors.Is(err, errLabelsKept), patch.IsRefused(err):
		markStalled(o.stack, pulumiv1.WorkspaceFailedReason, err.Error())
	default:
		return outcome{}, err
	}
	return outcome{after: r.WaitInterval}, nil
}

// inTerminatingNamespace says what to do if the namespace accepts no new objects, so that the resources cannot be destroyed. Missing
// objects such as Secrets cannot be created again, either.
func inTerminatingNamespace(stack *pulumiv1.Stack) string {
	return fmt.Sprintf("the namespace is being deleted, and nothing can be created in it any longer, so the resources cannot be destroyed "+
		"from here: to destroy them, create the same Stack in another namespace, where it takes over the stack %q, and delete it there; "+
		"then here, or %s", stack.Spec.Stack, orphanHint)
}

// setCurrent makes the Update the current one in the status, and records the requests that it answers.
func setCurrent(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	current := currentOf(update)
	stack.Status.CurrentUpdate = current
	if current.RequestedAt == requestedAt(stack) {
		handleFluxRequest(stack)
	}
	if current.ReconcileRequest == reconcileRequest(stack) {
		stack.Status.ObservedReconcileRequest = current.ReconcileRequest
	}
	if request := current.LastUpdateRequest; request != "" && request == lastUpdateRequest(stack) {
		stack.Status.ObservedLastUpdateRequest = request
	}
}

// desiredUpdate returns the Update that the decision asks for.
func desiredUpdate(o *observation, d decision) (*autov1alpha1.Update, error) {
	stack := o.stack
	update, err := template.Update(&autov1alpha1.Update{Spec: updateSpec(o, d)}, stack.Spec.UpdateTemplate)
	if err != nil {
		return nil, fmt.Errorf("spec.updateTemplate: %w", err)
	}
	if d.kind == autov1alpha1.UpdateTypeDestroy {
		// A destroy of some resources does not prove that the others are gone.
		update.Spec.Selection = autov1alpha1.Selection{}
	}
	if d.driftDigest != "" {
		correctDrift(&update.Spec, stack.Status.Drift)
	}
	if d.plans {
		planUpdate(update, stack, d)
	}
	if mustExist(stack) {
		update.Spec.RequireStack = new(true)
	} else if d.kind == autov1alpha1.UpdateTypeUp && !stack.Status.Deployed && stack.Status.LastUpdate == nil {
		update.Spec.NewStack = new(true)
	}
	update.Namespace, update.Name = stack.Namespace, updateName(stack)
	if update.Labels == nil {
		update.Labels = map[string]string{}
	}
	maps.Copy(update.Labels, labelsOf(stack))
	unlessHandled := func(request, handled string) string {
		if request == handled {
			return ""
		}
		return request
	}
	for annotation, value := range map[string]string{
		pulumiv1.ReconcileRequestAnnotation:        reconcileRequest(stack),
		meta.ReconcileRequestAnnotation:            unlessHandled(requestedAt(stack), stack.Status.LastHandledReconcileAt),
		pulumiv1.LastUpdateAnnotation:              unlessHandled(lastUpdateRequest(stack), stack.Status.ObservedLastUpdateRequest),
		pulumiv1.DriftUpdateAnnotation:             d.driftDigest,
		autov1alpha1.WorkspaceGenerationAnnotation: strconv.FormatInt(o.workspace.Generation, 10),
		autov1alpha1.NotStartedAnnotation:          notStarted(o.workspace),
	} {
		if value != "" {
			metav1.SetMetaDataAnnotation(&update.ObjectMeta, annotation, value)
		}
	}
	annotateInputs(update, inputsNow(o))
	update.Finalizers = []string{pulumiv1.Finalizer}
	update.OwnerReferences = ownersOfUpdate(o)
	return update, nil
}

// notStarted returns the value of NotStartedAnnotation for an Update that has to wait for an agent of its Workspace. It is empty if the Update can
// start at once: to remove the annotation costs a write.
func notStarted(workspace *autov1alpha1.Workspace) string {
	idle := conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) == autov1alpha1.IdleReason
	if workspace.CanRunOperations() && !idle && workspace.Status.ObservedGeneration == workspace.Generation {
		return ""
	}
	return "true"
}

// ownersOfUpdate returns the owners of an Update: the Workspace, which is its controller, and the Stack, so that the history outlives the
// Workspace.
func ownersOfUpdate(o *observation) []metav1.OwnerReference {
	return []metav1.OwnerReference{
		*metav1.NewControllerRef(o.workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
		{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: o.stack.Name, UID: o.stack.UID,
			BlockOwnerDeletion: new(true)},
	}
}

func updateSpec(o *observation, d decision) autov1alpha1.UpdateSpec {
	stack, last := o.stack, o.stack.Status.LastUpdate
	message := d.message
	// An update that is the first to run a commit also has the first line of the commit message in its message. The history of the stack shows
	// it: see the documentation of Stacks.
	if d.kind != autov1alpha1.UpdateTypeDestroy && o.artifact != nil &&
		o.artifact.Origin.Commit != nil && o.artifact.Origin.Commit.Message != "" &&
		(last == nil || last.LastAttemptedCommit != commitOf(o.artifact)) {
		message += ": " + o.artifact.Origin.Commit.Message
	}
	if d.applies {
		message += ", " + describeApprovers(stack.Status.Plan, stack.Spec.Approval)
	}
	spec := template.Options(stack)
	spec.Type, spec.Message, spec.TTLAfterCompleted = d.kind, &message, &metav1.Duration{Duration: defaultUpdateTTL}
	spec.AfterInterruption = optional(mayHavePendingOperations(stack))
	if forceRequested(stack) || d.plans && strings.HasPrefix(d.message, forcedRequestTrigger) {
		// A forced update refreshes, so that it finds and restores what was changed or removed outside of Pulumi. A plan that is made again has the
		// request that led to it in its message.
		spec.Refresh, spec.ExpectNoRefreshChanges = new(true), nil
	}
	if o.artifact != nil {
		spec.Source = o.artifact.UpdateSource(o.desired.dir)
	}
	if d.kind == autov1alpha1.UpdateTypeDestroy {
		spec.RunProgram, spec.ExpectNoRefreshChanges = optional(stack.Spec.RunProgram), nil
	}
	return spec
}

// correctDrift limits the update to the resources in the status that drifted and to those that depend on them: a resource that is created
// again has another ID. The next check finds what the status does not list. It does not limit the update when the Stack has targets, to which
// the check is limited, or excludes resources, which targetDependents would not respect.
func correctDrift(spec *autov1alpha1.UpdateSpec, drift *pulumiv1.DriftStatus) {
	spec.Refresh, spec.ExpectNoRefreshChanges = new(true), nil
	if len(spec.Target)+len(spec.Exclude) > 0 {
		return
	}
	spec.Target = correctable(drift.Resources)
	spec.TargetDependents = new(true)
}

// updateName returns a name with a hash of the Stack's UID and of the name of the Update that was recorded last, as an update or as a plan,
// so that only one Update can follow. A controller that has crashed, has an old cache, or is no longer the leader finds the Update that
// exists. With a name made of the inputs, such a controller would create a second Update, which would run after the first one with older
// inputs.
func updateName(stack *pulumiv1.Stack) string {
	previous := ""
	if last := stack.Status.LastUpdate; last != nil {
		previous = last.Name
	}
	if plan := stack.Status.Plan; plan != nil && !plans.IsConcluded(plan) {
		previous = cmp.Or(plan.Update, plan.Name)
	}
	hash := sha256.Sum256([]byte(string(stack.UID) + "/" + previous))
	return stack.Name + "-" + hex.EncodeToString(hash[:])[:10]
}

// currentOf returns what the status of the Stack says about the Update while that is the current one, see annotatedInputs.
func currentOf(update *autov1alpha1.Update) *pulumiv1.CurrentStackUpdate {
	return &pulumiv1.CurrentStackUpdate{
		UpdateInputs:      annotatedInputs(update),
		ReconcileRequest:  update.Annotations[pulumiv1.ReconcileRequestAnnotation],
		RequestedAt:       update.Annotations[meta.ReconcileRequestAnnotation],
		LastUpdateRequest: update.Annotations[pulumiv1.LastUpdateAnnotation],
		Name:              update.Name,
		UID:               update.UID,
		Cause:             pulumiv1.PlanCause(update.Annotations[pulumiv1.PlanCauseAnnotation]),
		Drift:             update.Annotations[pulumiv1.DriftUpdateAnnotation],
	}
}

// optional returns nil for false, which is the default, so that the field is left out.
func optional(value bool) *bool {
	if !value {
		return nil
	}
	return &value
}
