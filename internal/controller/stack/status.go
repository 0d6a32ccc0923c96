package stack

import (
	"fmt"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// markReady marks the Stack as Ready: it is what its inputs ask for.
func markReady(stack *pulumiv1.Stack) {
	message := "the stack has been processed and is up to date"
	if revision := stack.Status.LastAppliedRevision; revision != "" {
		message = fmt.Sprintf("%s: applied revision %s", message, revision)
	}
	conditions.Delete(stack, meta.ReconcilingCondition)
	conditions.Delete(stack, meta.StalledCondition)
	stack.Status.ObservedGeneration = stack.Generation
	conditions.MarkTrue(stack, meta.ReadyCondition, pulumiv1.ProcessingCompletedReason, "%s", message)
	// Drift is a fact about the resources and does not depend on the specification, so the condition gets the current generation.
	conditions.Set(stack, conditions.Get(stack, pulumiv1.DriftedCondition))
}

// markProgressing marks the Stack as Reconciling because an operation is in progress. The outcome is open, so Ready is Unknown.
func markProgressing(stack *pulumiv1.Stack, message string) {
	conditions.MarkReconciling(stack, pulumiv1.StackProcessingReason, "%s", message)
	conditions.MarkUnknown(stack, meta.ReadyCondition, pulumiv1.NotReadyInProgressReason, "%s", message)
}

// reconcilingReasons are the reasons of Ready that the Reconciling condition has, too. For all others, Reconciling has the reason
// ProgressingWithRetry.
var reconcilingReasons = []string{
	pulumiv1.PrerequisiteNotSatisfiedReason,
	pulumiv1.RetryingAfterFailureReason,
	pulumiv1.PreviewFailedReason,
	pulumiv1.UpdateInterruptedReason,
	pulumiv1.UpdateConflictReason,
}

// markWaiting shows what is missing. This is not a failure, and what is missing may appear at any time.
func markWaiting(stack *pulumiv1.Stack, reason, message string) {
	reconciling := pulumiv1.ProgressingWithRetryReason
	if slices.Contains(reconcilingReasons, reason) {
		reconciling = reason
	}
	conditions.MarkReconciling(stack, reconciling, "%s", message)
	conditions.MarkFalse(stack, meta.ReadyCondition, reason, "%s", message)
}

// markStalled marks the Stack as Stalled: it cannot go on before a human fixes something, or a cause outside of the controller goes away.
// The generation counts as observed, so that a client that waits for the Stack fails fast.
func markStalled(stack *pulumiv1.Stack, reason, message string) {
	conditions.MarkStalled(stack, reason, "%s", message)
	conditions.MarkFalse(stack, meta.ReadyCondition, reason, "%s", message)
	stack.Status.ObservedGeneration = stack.Generation
}

// markSuspended corrects the conditions of a suspended Stack that still say that an update is in progress, when there is none any longer and
// none will follow.
func markSuspended(stack *pulumiv1.Stack) {
	if conditions.GetReason(stack, meta.ReconcilingCondition) != pulumiv1.StackProcessingReason {
		return
	}
	last, result := stack.Status.LastUpdate, "it was never updated"
	switch {
	case last == nil:
	case last.State == pulumiv1.StackUpdateSucceeded:
		result = fmt.Sprintf("its last %s succeeded%s", last.Type, describeApplied(last))
	default:
		result = fmt.Sprintf("its last %s did not succeed: %s", last.Type, last.Message)
	}
	markStalled(stack, pulumiv1.SuspendedReason, "reconciliation is suspended, set spec.suspend to false to resume it; "+result)
}

// acceptGeneration records that the specification was seen although nothing is done about it. Clients that wait for a suspended Stack, such as
// a Kustomization, see what it showed before, and Stacks that depend on it go on.
func acceptGeneration(stack *pulumiv1.Stack) {
	stack.Status.ObservedGeneration = stack.Generation
	for _, condition := range slices.Clone(stack.Status.Conditions) {
		conditions.Set(stack, &condition)
	}
}

// keepsReady reports whether a running update leaves the conditions as they are: a periodic run of a Stack that is up to date changes
// nothing that anybody waits for, and a Stack that is stalled after many failures stays so until an attempt succeeds.
func keepsReady(stack *pulumiv1.Stack) bool {
	return repeats(stack) && (conditions.IsReady(stack) || conditions.GetReason(stack, meta.StalledCondition) == pulumiv1.UpdateFailedReason)
}

// failsRepeatedly reports whether the running update follows so many failures with the same inputs that the Stack is Stalled. The update
// may have started before the status showed the last of them.
func failsRepeatedly(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return repeats(stack) && last.State == pulumiv1.StackUpdateFailed && retryReason(last) == pulumiv1.UpdateFailedReason
}

func commitOf(artifact *source.Artifact) string {
	if artifact == nil {
		return ""
	}
	return artifact.Commit()
}

func describeRevision(artifact *source.Artifact) string {
	switch {
	case artifact == nil:
		return "none"
	case artifact.Revision == "":
		return artifact.Digest
	}
	return artifact.Revision
}
