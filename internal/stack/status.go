package stack

import (
	"fmt"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// markSettled says that the Stack is what its inputs ask for.
func markSettled(stack *pulumiv1.Stack) {
	message := "the stack has been processed and is up to date"
	if revision := stack.Status.LastAppliedRevision; revision != "" {
		message = fmt.Sprintf("%s: applied revision %s", message, revision)
	}
	conditions.Delete(stack, meta.ReconcilingCondition)
	conditions.Delete(stack, meta.StalledCondition)
	stack.Status.ObservedGeneration = stack.Generation
	conditions.MarkTrue(stack, meta.ReadyCondition, pulumiv1.ProcessingCompletedReason, "%s", message)
}

// markWorking says that an operation is on its way. The outcome is open, so Ready is Unknown.
func markWorking(stack *pulumiv1.Stack, message string) {
	conditions.MarkReconciling(stack, pulumiv1.StackProcessingReason, "%s", message)
	conditions.MarkUnknown(stack, meta.ReadyCondition, pulumiv1.NotReadyInProgressReason, "%s", message)
}

// reconcilingReasons are those that the condition Reconciling has, too; for others it only tells that there is a retry.
var reconcilingReasons = []string{
	pulumiv1.PrerequisiteNotSatisfiedReason,
	pulumiv1.RetryingAfterFailureReason,
	pulumiv1.PreviewFailedReason,
	pulumiv1.UpdateInterruptedReason,
	pulumiv1.UpdateConflictReason,
}

// markWaiting says what is missing. It is not a failure, and what is missing may appear at any time.
func markWaiting(stack *pulumiv1.Stack, reason, message string) {
	conditions.MarkReconciling(stack, pulumiv1.ProgressingWithRetryReason, "%s", message)
	if slices.Contains(reconcilingReasons, reason) {
		conditions.MarkReconciling(stack, reason, "%s", message)
	}
	conditions.MarkFalse(stack, meta.ReadyCondition, reason, "%s", message)
}

// markStalled says that only a human, or a cause from outside that goes away, can help. The generation counts as observed:
// whoever waits for the Stack fails fast.
func markStalled(stack *pulumiv1.Stack, reason, message string) {
	conditions.MarkStalled(stack, reason, "%s", message)
	conditions.MarkFalse(stack, meta.ReadyCondition, reason, "%s", message)
	stack.Status.ObservedGeneration = stack.Generation
}

// keepsReady tells whether a running update leaves the conditions as they are: a periodic run of a settled Stack changes
// nothing that anybody waits for, and a Stack that is stalled after many failures stays so until an attempt succeeds.
func keepsReady(stack *pulumiv1.Stack) bool {
	return repeats(stack) && (conditions.IsReady(stack) || conditions.GetReason(stack, meta.StalledCondition) == pulumiv1.UpdateFailedReason)
}

// failsAgainAndAgain tells whether the running update follows as many failures with the same inputs as stall a Stack. It may have
// started before the last of them was shown.
func failsAgainAndAgain(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return repeats(stack) && last.State == pulumiv1.StackUpdateFailed && retryReason(last) == pulumiv1.UpdateFailedReason
}

// repeats tells whether the running update has the inputs of the last one, and the Stack has not been edited since.
func repeats(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	current := stack.Status.CurrentUpdate
	if last == nil || current == nil || !stack.DeletionTimestamp.IsZero() {
		return false
	}
	return last.Generation == current.Generation &&
		last.Generation == stack.Generation &&
		last.LastAttemptedCommit == current.Commit &&
		last.ReconcileRequest == current.ReconcileRequest &&
		!usesNewReferences(last, current) &&
		current.RequestedAt == ""
}
