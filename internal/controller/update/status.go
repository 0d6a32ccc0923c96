package update

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// updateStates maps the state of an operation to the state of its Update.
var updateStates = map[agentpb.OperationState]autov1alpha1.UpdateState{
	agentpb.OperationState_OPERATION_STATE_QUEUED:      autov1alpha1.UpdateStateQueued,
	agentpb.OperationState_OPERATION_STATE_PREPARING:   autov1alpha1.UpdateStatePreparing,
	agentpb.OperationState_OPERATION_STATE_RUNNING:     autov1alpha1.UpdateStateRunning,
	agentpb.OperationState_OPERATION_STATE_SUCCEEDED:   autov1alpha1.UpdateStateSucceeded,
	agentpb.OperationState_OPERATION_STATE_FAILED:      autov1alpha1.UpdateStateFailed,
	agentpb.OperationState_OPERATION_STATE_INTERRUPTED: autov1alpha1.UpdateStateInterrupted,
	agentpb.OperationState_OPERATION_STATE_CANCELLED:   autov1alpha1.UpdateStateCancelled,
}

// updateReasons maps the cause that the agent names to the reason of Failed=True.
var updateReasons = map[agentpb.FailureReason]string{
	agentpb.FailureReason_FAILURE_REASON_UNSPECIFIED:        autov1alpha1.UnknownReason,
	agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED:      autov1alpha1.UpdateFailedReason,
	agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID:    autov1alpha1.ProjectInvalidReason,
	agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED:     autov1alpha1.InstallFailedReason,
	agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND:    autov1alpha1.StackNotFoundReason,
	agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT:    autov1alpha1.UpdateConflictReason,
	agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED:    autov1alpha1.InvalidAccessTokenReason,
	agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER:   autov1alpha1.SecretsProviderFailedReason,
	agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID:     autov1alpha1.ConfigInvalidReason,
	agentpb.FailureReason_FAILURE_REASON_TIMEOUT:            autov1alpha1.TimeoutReason,
	agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES: autov1alpha1.UnexpectedChangesReason,
	agentpb.FailureReason_FAILURE_REASON_PLAN_STALE:         autov1alpha1.PlanStaleReason,
	agentpb.FailureReason_FAILURE_REASON_PLAN_VIOLATED:      autov1alpha1.PlanViolatedReason,
	agentpb.FailureReason_FAILURE_REASON_PLAN_TOO_LARGE:     autov1alpha1.PlanTooLargeReason,

	agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED: autov1alpha1.StateUpgradeRequiredReason,
	agentpb.FailureReason_FAILURE_REASON_POLICY_VIOLATION:       autov1alpha1.PolicyViolationReason,
	agentpb.FailureReason_FAILURE_REASON_AWAITING:               autov1alpha1.AwaitingResourcesReason,
}

// markWaiting shows why the Update makes no progress. The conditions of an operation that was started stay until it ends.
func markWaiting(update *autov1alpha1.Update, reason, message string) {
	update.Status.Message = message
	if update.HasStarted() {
		return
	}
	markIncomplete(update)
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, reason, "%s", message)
	update.Status.ObservedGeneration = update.Generation
	update.Status.State = ""
	if reason == autov1alpha1.QueuedReason {
		update.Status.State = autov1alpha1.UpdateStateQueued
	}
}

// markProgressing shows an operation that the agent has accepted. Its conditions stay as they are until the operation
// ends; what it does right now is in the message.
func markProgressing(update *autov1alpha1.Update, operation *agentpb.Operation) {
	markIncomplete(update)
	conditions.MarkTrue(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateProgressingReason, "the operation is in progress")
	showOperation(update, operation)
}

func markIncomplete(update *autov1alpha1.Update) {
	if !wasRepeated(update) {
		conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateProgressingReason, "")
	}
	conditions.MarkFalse(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateProgressingReason, "")
}

// markRepeated turns a started Update, whose operation was lost, into one that has not started. The condition Failed records that, because
// an operation is repeated only once: if something ends every operation, the repetition must not become a loop.
func markRepeated(update *autov1alpha1.Update, reason, message string) {
	update.Status.StartTime, update.Status.ResourceChanges, update.Status.Permalink = nil, nil, ""
	conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.InterruptedReason, "the first attempt was interrupted")
	markWaiting(update, reason, message)
}

// wasRepeated reports whether an Update that is not complete lost its operation before, so that the operation was started again.
func wasRepeated(update *autov1alpha1.Update) bool {
	return conditions.IsFalse(update, autov1alpha1.UpdateFailed) &&
		conditions.GetReason(update, autov1alpha1.UpdateFailed) == autov1alpha1.InterruptedReason
}

// showOperation writes what the agent reports of the operation into the status. The start is always recorded: it says that the
// operation may have had an effect.
func showOperation(update *autov1alpha1.Update, operation *agentpb.Operation) {
	status := &update.Status
	status.ObservedGeneration = update.Generation
	status.State = updateStates[operation.GetState()]
	status.Message = operation.GetMessage()
	status.Permalink = operation.GetPermalink()
	status.ResourceChanges = maps.Clone(operation.GetResourceChanges())
	if update.Spec.Source != nil {
		// Otherwise the revision was recorded when the operation started.
		status.Revision = update.Spec.Source.Revision
	}
	if status.StartTime == nil {
		started := metav1.Now().Rfc3339Copy()
		if operation.GetStartTime() != nil {
			started = metav1.NewTime(operation.GetStartTime().AsTime()).Rfc3339Copy()
		}
		status.StartTime = &started
		// What the operation was started with, see claim.
		status.InputValuesDigest = update.Annotations[pulumiv1.InputValuesDigestAnnotation]
		status.InputVersionsDigest = update.Annotations[pulumiv1.InputVersionsDigestAnnotation]
	}
	if project := operation.GetProject(); project != nil {
		status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: project.GetName(), Runtime: project.GetRuntime(), NeedsProgram: project.GetNeedsProgram()}
	}
}

// markResult completes the Update with the result of an operation that ended. note says what of the result could not be kept; empty when
// nothing is missing.
func markResult(update *autov1alpha1.Update, operation *agentpb.Operation, note string) {
	showOperation(update, operation)
	showChanges(update, operation)
	ended := time.Now()
	if operation.GetEndTime() != nil {
		ended = operation.GetEndTime().AsTime()
	}
	message := resultMessage(operation)
	if note != "" {
		message += "; " + note
	}
	if operation.GetState() == agentpb.OperationState_OPERATION_STATE_SUCCEEDED {
		markSucceeded(update, ended, message)
		return
	}
	reason := failureReason(operation)
	if reason == autov1alpha1.StackNotFoundReason && ptr.Deref(update.Spec.RequireStack, false) {
		reason, message = autov1alpha1.StackLostReason, describeMissing(&update.Spec)
	}
	update.Status.NotRun = operation.GetState() == agentpb.OperationState_OPERATION_STATE_FAILED && operation.GetRunTime() == nil
	markFailed(update, reason, ended, message)
}

// mayHaveRun reports whether an Update that ends without a result may have run Pulumi. There are three proofs that it did not, whatever it ends
// for: an agent answers and does not know the operation, there never was an agent, or the Update was not claimed (see claim).
func mayHaveRun(o *observation) bool {
	if o.update.Status.StartTime != nil || wasRepeated(o.update) || o.workspace == nil || o.inOtherShard {
		return true
	}
	mayKnow := o.agent.operation != nil || o.agent.err != nil || !o.agent.asked
	return mayKnow && !o.workspace.CannotHaveRun(o.update)
}

// showChanges writes what an operation would change into the status.
func showChanges(update *autov1alpha1.Update, operation *agentpb.Operation) {
	update.Status.Changes, update.Status.OmittedChanges = nil, operation.GetOmittedChanges()
	for _, change := range operation.GetChanges() {
		update.Status.Changes = append(update.Status.Changes, autov1alpha1.ResourceChange{Operation: change.GetOperation(),
			URN: change.GetUrn(), Paths: change.GetPaths(), ReplacePaths: change.GetReplacePaths(), Digest: change.GetDigest()})
	}
}

// describeMissing says what it means that a stack which has to exist does not, and what the user can do. An agent knows that it has removed the
// stack itself; the agent of another pod does not.
func describeMissing(spec *autov1alpha1.UpdateSpec) string {
	problem := fmt.Sprintf("stack %q was deployed before, and the backend no longer has it in this project, so nothing was run: ", spec.StackName)
	if spec.Type == autov1alpha1.UpdateTypeDestroy && ptr.Deref(spec.Remove, false) && ptr.Deref(spec.AfterInterruption, false) {
		problem += fmt.Sprintf("an earlier destroy, which was interrupted, may have removed it after it had destroyed everything: if its resources "+
			"are gone, set the annotation %s=true on the Stack; if they are not, ", pulumiv1.OrphanAnnotation)
	}
	return problem + fmt.Sprintf("check the URL of the backend, its state, and the name of the project; to create the stack again, empty and "+
		"without any of the resources that it had, set the annotation %s=true on the Stack", pulumiv1.CreateMissingStackAnnotation)
}

// failureReason returns why the operation ended without success. A newer agent may know causes that this controller does not.
func failureReason(operation *agentpb.Operation) string {
	switch operation.GetState() {
	case agentpb.OperationState_OPERATION_STATE_INTERRUPTED:
		return autov1alpha1.InterruptedReason
	case agentpb.OperationState_OPERATION_STATE_CANCELLED:
		return autov1alpha1.CanceledReason
	}
	return cmp.Or(updateReasons[operation.GetFailure()], autov1alpha1.UnknownReason)
}

// resultMessage returns the message of the agent, and never an empty one. It describes the holder of a lock in fewer words than the CLI.
func resultMessage(operation *agentpb.Operation) string {
	if holder := operation.GetLockHolder(); holder != nil && operation.GetFailure() == agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT {
		since := ""
		if holder.GetSince() != nil {
			since = " since " + holder.GetSince().AsTime().UTC().Format(time.RFC3339)
		}
		return fmt.Sprintf("the stack is locked by %s@%s (pid %d)%s: it goes on when that process has ended; "+
			"a lock that is left over is removed with `pulumi cancel`", holder.GetUser(), holder.GetHost(), holder.GetPid(), since)
	}
	kind := strings.TrimPrefix(operation.GetKind().String(), "OPERATION_KIND_")
	state := strings.TrimPrefix(operation.GetState().String(), "OPERATION_STATE_")
	return cmp.Or(operation.GetMessage(), strings.ToLower(kind+" "+state))
}

// markSucceeded completes the Update with success.
func markSucceeded(update *autov1alpha1.Update, ended time.Time, message string) {
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateCompleteReason, "%s", message)
	conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateSucceededReason, "%s", message)
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "%s", message)
	markEnded(update, autov1alpha1.UpdateStateSucceeded, ended, message)
}

// markFailed completes the Update without success; reason is a reason of Failed=True.
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
