package stack

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
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

// markSuspended corrects the conditions of a suspended Stack that still say that an update is in progress, when there is none any more and
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

// repeats reports whether the running update has the inputs of the last one, and the Stack has not been edited since.
func repeats(stack *pulumiv1.Stack) bool {
	last, current := stack.Status.LastUpdate, stack.Status.CurrentUpdate
	if last == nil || current == nil || !stack.DeletionTimestamp.IsZero() {
		return false
	}
	newReferences := last.ReferencesDigest != "" && !references.Covers(last.ReferencesDigest, current.ReferencesDigest)
	return last.Generation == current.Generation &&
		last.Generation == stack.Generation &&
		last.LastAttemptedCommit == current.Commit &&
		last.ReconcileRequest == current.ReconcileRequest &&
		!newReferences &&
		current.RequestedAt == "" && current.LastUpdateRequest == ""
}

// acceptInputs records that the last attempt covers the current inputs, too. The current revision has the same content, and the current
// versions of Secrets that were not watched during the attempt are those that later versions are compared with.
func acceptInputs(o *observation) {
	status := &o.stack.Status
	if last := status.LastUpdate; last != nil && last.ReferencesDigest == "" {
		last.ReferencesDigest = references.Digest(o.references)
	}
	if o.artifact == nil || !o.stack.DeletionTimestamp.IsZero() {
		return
	}
	status.LastAttemptedRevision = o.artifact.Revision
	status.LastUpdate.LastAttemptedCommit = commitOf(o.artifact)
	if status.LastUpdate.State != pulumiv1.StackUpdateSucceeded {
		return
	}
	status.LastUpdate.LastSuccessfulCommit = commitOf(o.artifact)
	if status.LastUpdate.Type != autov1alpha1.UpdateTypePreview {
		status.LastAppliedRevision = o.artifact.Revision
		status.LastAppliedOriginRevision = originRevision(o.artifact.Revision, o.artifact.Origin.Commit)
	}
}

// A new generation does not always mean that the specification has changed. The Pulumi Kubernetes Operator drops the fields that are false,
// zero or empty when it adds its finalizer, and the next apply of the manifest brings them back.

// specDigest identifies what the specification says. Fields that are false, zero or empty count as absent where the API does not
// distinguish them from absent ones; configuration is the user's own data and counts as it is. spec.drift and spec.approval do not count,
// because a change of them needs no update.
func specDigest(stack *pulumiv1.Stack) string {
	spec := stack.Spec
	spec.Drift, spec.Approval = nil, nil
	content, err := json.Marshal(spec)
	if err != nil {
		// This cannot happen: the specification was decoded from JSON. An empty digest counts as none.
		return ""
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// followGeneration sets the generation of the updates and the plan that were made for an equal specification to the generation that the
// Stack has now. A deletion also increases the generation, but it asks for something else.
func followGeneration(stack *pulumiv1.Stack) {
	if !stack.DeletionTimestamp.IsZero() || stack.Spec.Suspend {
		return
	}
	follow := func(generation *int64, recorded string) {
		if *generation != stack.Generation && recorded != "" && recorded == specDigest(stack) {
			*generation = stack.Generation
		}
	}
	if last := stack.Status.LastUpdate; last != nil {
		follow(&last.Generation, last.SpecDigest)
	}
	if plan := stack.Status.Plan; plan != nil {
		follow(&plan.Generation, plan.SpecDigest)
	}
	if current := stack.Status.CurrentUpdate; current != nil {
		follow(&current.Generation, current.SpecDigest)
	}
}

// dropSpecDigest makes a Stack run once after it is resumed, even if its specification is the same then: the resources may be behind it.
func dropSpecDigest(stack *pulumiv1.Stack) {
	if last := stack.Status.LastUpdate; last != nil {
		last.SpecDigest = ""
	}
}

// reconcileRequest is the value of the Pulumi annotation that asks for an update.
func reconcileRequest(stack *pulumiv1.Stack) string {
	return stack.Annotations[pulumiv1.ReconcileRequestAnnotation]
}

// requestedAt is the value of the Flux annotation that asks for an update.
func requestedAt(stack *pulumiv1.Stack) string {
	token, _ := meta.ReconcileAnnotationValue(stack.Annotations)
	return token
}

// lastUpdateRequest is the value of the annotation that asks for an update in tutorials.
func lastUpdateRequest(stack *pulumiv1.Stack) string {
	return stack.Annotations[pulumiv1.LastUpdateAnnotation]
}

// unhandledRequest returns the request, in any of the annotations, that no update was made for yet.
func unhandledRequest(stack *pulumiv1.Stack) string {
	status := &stack.Status
	for _, request := range [][2]string{
		{reconcileRequest(stack), status.ObservedReconcileRequest},
		{requestedAt(stack), status.LastHandledReconcileAt},
		{lastUpdateRequest(stack), status.ObservedLastUpdateRequest},
	} {
		if request[0] != "" && request[0] != request[1] {
			return request[0]
		}
	}
	return ""
}

// handleRequests records that the requests in the annotations were seen.
func handleRequests(stack *pulumiv1.Stack) {
	handleFluxRequest(stack)
	stack.Status.ObservedReconcileRequest = reconcileRequest(stack)
	if request := lastUpdateRequest(stack); request != "" {
		stack.Status.ObservedLastUpdateRequest = request
	}
}

// forceRequested reports whether Flux's annotations ask for a forced update that was not made yet: a request to force, together with a
// plain one of the same value.
func forceRequested(stack *pulumiv1.Stack) bool {
	handled := stack.Status.LastHandledForceAt
	return meta.HandleAnnotationRequest(stack, meta.ForceRequestAnnotation, &handled)
}

func handleFluxRequest(stack *pulumiv1.Stack) {
	// A force request counts as handled even if it came without a plain request, as in Flux. What it asked for is in the Update.
	meta.ShouldHandleForceRequest(stack)
	if token := requestedAt(stack); token != "" {
		stack.Status.LastHandledReconcileAt = token
	}
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
