package update

import (
	"context"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// updateStates are the states of an Update by those of its operation.
var updateStates = map[proto.OperationState]autov1alpha1.UpdateState{
	proto.OperationState_OPERATION_STATE_QUEUED:      autov1alpha1.UpdateStateQueued,
	proto.OperationState_OPERATION_STATE_PREPARING:   autov1alpha1.UpdateStatePreparing,
	proto.OperationState_OPERATION_STATE_RUNNING:     autov1alpha1.UpdateStateRunning,
	proto.OperationState_OPERATION_STATE_SUCCEEDED:   autov1alpha1.UpdateStateSucceeded,
	proto.OperationState_OPERATION_STATE_FAILED:      autov1alpha1.UpdateStateFailed,
	proto.OperationState_OPERATION_STATE_INTERRUPTED: autov1alpha1.UpdateStateInterrupted,
	proto.OperationState_OPERATION_STATE_CANCELLED:   autov1alpha1.UpdateStateCancelled,
}

// markWaiting shows why the operation has not started.
func markWaiting(update *autov1alpha1.Update, reason, message string) {
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, reason, "%s", message)
	conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateProgressingReason, "")
	conditions.MarkFalse(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateProgressingReason, "")
	update.Status.ObservedGeneration = update.Generation
	update.Status.Message = message
	update.Status.State = ""
	if reason == reasonQueued {
		update.Status.State = autov1alpha1.UpdateStateQueued
	}
}

// markProgressing shows an operation that the agent has accepted. Its conditions stay as they are until the operation
// ends; what it does right now is in the message.
func markProgressing(update *autov1alpha1.Update, operation *proto.Operation) {
	conditions.MarkTrue(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateProgressingReason, "the operation is in progress")
	conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateProgressingReason, "")
	conditions.MarkFalse(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateProgressingReason, "")
	takeOver(update, operation)
}

// takeOver writes what the agent tells of the operation into the status. The start is always recorded: it tells that the
// operation may have had an effect.
func takeOver(update *autov1alpha1.Update, operation *proto.Operation) {
	status := &update.Status
	status.ObservedGeneration = update.Generation
	status.State = updateStates[operation.GetState()]
	status.Message = operation.GetMessage()
	status.Permalink = operation.GetPermalink()
	status.ResourceChanges = maps.Clone(operation.GetResourceChanges())
	if update.Spec.Source != nil {
		// Otherwise it was noted when the operation started.
		status.Revision = update.Spec.Source.Revision
	}
	if status.StartTime == nil {
		status.StartTime = startOf(operation)
	}
	if project := operation.GetProject(); project != nil {
		status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: project.GetName(), Runtime: project.GetRuntime()}
	}
}

func startOf(operation *proto.Operation) *metav1.Time {
	started := metav1.Now()
	if operation.GetStartTime() != nil {
		started = metav1.NewTime(operation.GetStartTime().AsTime())
	}
	started = started.Rfc3339Copy()
	return &started
}

// markSucceeded completes the Update with success.
func markSucceeded(update *autov1alpha1.Update, ended time.Time, message string) {
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateCompleteReason, "%s", message)
	conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateSucceededReason, "%s", message)
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "%s", message)
	markEnded(update, autov1alpha1.UpdateStateSucceeded, ended, message)
}

// markFailed completes the Update without success; reason is one of Failed=True.
func markFailed(update *autov1alpha1.Update, reason string, ended time.Time, message string) {
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateEndedFailedReason, "%s", message)
	conditions.MarkTrue(update, autov1alpha1.UpdateFailed, reason, "%s", message)
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "%s", message)
	state := autov1alpha1.UpdateStateFailed
	switch reason {
	case autov1alpha1.CanceledReason:
		state = autov1alpha1.UpdateStateCancelled
	case autov1alpha1.InterruptedReason:
		state = autov1alpha1.UpdateStateInterrupted
	}
	markEnded(update, state, ended, message)
}

func markEnded(update *autov1alpha1.Update, state autov1alpha1.UpdateState, ended time.Time, message string) {
	update.Status.ObservedGeneration = update.Generation
	update.Status.State = state
	update.Status.Message = message
	update.Status.EndTime = new(metav1.NewTime(ended).Rfc3339Copy())
}

// patchStatus writes the status when it changed, all of it in one request: whoever sees that an Update is complete also
// sees its result. (The patch helper of Flux would write the conditions first and the rest after them.) The write fails
// with a conflict when the Update is no longer the one that was decided on, so that a decision from an old cache has no
// effect.
func (r *Reconciler) patchStatus(ctx context.Context, before, update *autov1alpha1.Update) error {
	if equality.Semantic.DeepEqual(before.Status, update.Status) {
		return nil
	}
	patch := ctrlclient.MergeFromWithOptions(before, ctrlclient.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, update, patch, ctrlclient.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
