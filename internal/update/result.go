package update

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// failureReasons are the reasons of Failed=True by the cause that the agent names.
var failureReasons = map[proto.FailureReason]string{
	proto.FailureReason_FAILURE_REASON_UNSPECIFIED:        autov1alpha1.UnknownReason,
	proto.FailureReason_FAILURE_REASON_UPDATE_FAILED:      autov1alpha1.UpdateFailedReason,
	proto.FailureReason_FAILURE_REASON_PROJECT_INVALID:    autov1alpha1.ProjectInvalidReason,
	proto.FailureReason_FAILURE_REASON_INSTALL_FAILED:     autov1alpha1.InstallFailedReason,
	proto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND:    autov1alpha1.StackNotFoundReason,
	proto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT:    autov1alpha1.UpdateConflictReason,
	proto.FailureReason_FAILURE_REASON_UNAUTHENTICATED:    autov1alpha1.InvalidAccessTokenReason,
	proto.FailureReason_FAILURE_REASON_SECRETS_PROVIDER:   autov1alpha1.SecretsProviderFailedReason,
	proto.FailureReason_FAILURE_REASON_CONFIG_INVALID:     autov1alpha1.ConfigInvalidReason,
	proto.FailureReason_FAILURE_REASON_TIMEOUT:            autov1alpha1.TimeoutReason,
	proto.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES: autov1alpha1.UnexpectedChangesReason,
}

// markResult completes the Update with the result of an operation that ended. note, when there is one, tells what could
// not be kept of it.
func markResult(update *autov1alpha1.Update, operation *proto.Operation, note string) {
	takeOver(update, operation)
	ended := time.Now()
	if operation.GetEndTime() != nil {
		ended = operation.GetEndTime().AsTime()
	}
	message := resultMessage(operation)
	if note != "" {
		message += "; " + note
	}
	if operation.GetState() == proto.OperationState_OPERATION_STATE_SUCCEEDED {
		markSucceeded(update, ended, message)
		return
	}
	reason := failureReason(operation)
	if reason == autov1alpha1.StackNotFoundReason && ptr.Deref(update.Spec.RequireStack, false) {
		reason, message = autov1alpha1.StackLostReason, describeLost(update.Spec.StackName)
	}
	markFailed(update, reason, ended, message)
}

// describeLost says what it means that a stack that must be there is not, and what there is to do.
func describeLost(stack string) string {
	return fmt.Sprintf("stack %q was deployed before, and the backend does not have it any more in this project, so nothing was run: look "+
		"whether it is the right backend, whether all of its state is there and whether the project has the name that it had; the "+
		"annotation %s=true on the Stack lets the stack be created again, empty and without any of the resources that it had", stack, pulumiv1.CreateMissingStackAnnotation)
}

// failureReason returns why the operation ended without success. A newer agent may know causes that this controller does not.
func failureReason(operation *proto.Operation) string {
	switch operation.GetState() {
	case proto.OperationState_OPERATION_STATE_INTERRUPTED:
		return autov1alpha1.InterruptedReason
	case proto.OperationState_OPERATION_STATE_CANCELLED:
		return autov1alpha1.CanceledReason
	}
	if reason, known := failureReasons[operation.GetFailure()]; known {
		return reason
	}
	return autov1alpha1.UnknownReason
}

// resultMessage is the message of the agent, and never empty.
func resultMessage(operation *proto.Operation) string {
	message := operation.GetMessage()
	if message == "" {
		kind := strings.TrimPrefix(operation.GetKind().String(), "OPERATION_KIND_")
		state := strings.TrimPrefix(operation.GetState().String(), "OPERATION_STATE_")
		message = fmt.Sprintf("%s %s", strings.ToLower(kind), strings.ToLower(state))
	}
	if holder := operation.GetLockHolder(); holder != nil && operation.GetFailure() == proto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT {
		return describeLock(holder)
	}
	return message
}

// describeLock names who holds the lock of the stack, and since when. It says all that the CLI says about it, in fewer words.
func describeLock(holder *proto.LockHolder) string {
	text := fmt.Sprintf("the stack is locked by %s@%s (pid %d)", holder.GetUser(), holder.GetHost(), holder.GetPid())
	if holder.GetSince() != nil {
		text += " since " + holder.GetSince().AsTime().UTC().Format(time.RFC3339)
	}
	return text + ": it goes on when that process has ended; a lock that is left over is removed with `pulumi cancel`"
}
