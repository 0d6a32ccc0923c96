package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// IsComplete reports whether the Update has ended, with or without success, and its result is in the status.
func (in *Update) IsComplete() bool {
	return apimeta.IsStatusConditionTrue(in.Status.Conditions, UpdateComplete)
}

// HasStarted reports whether an agent has accepted the Update's operation, or the Update is complete. Before that, an Update can be removed
// as if it had never existed.
func (in *Update) HasStarted() bool {
	return in.Status.StartTime != nil || in.IsComplete()
}

// HasFailed reports whether the Update ended without success.
func (in *Update) HasFailed() bool {
	return in.IsComplete() && apimeta.IsStatusConditionTrue(in.Status.Conditions, UpdateFailed)
}

// WasInterrupted reports whether the Update's operation was stopped from outside. What the operation did is not known. It is repeated, and
// does not count as a failed attempt.
func (in *Update) WasInterrupted() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == InterruptedReason
}

// WasLockedOut reports whether the Update's operation changed nothing because another process held the lock of the stack. It is repeated,
// and does not count as a failed attempt: see recordFailure in internal/controller/stack/result.go.
func (in *Update) WasLockedOut() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == UpdateConflictReason
}

// AwaitsResources reports whether the Update's operation did all but what depends on resources that are not ready yet. It is repeated, and does
// not count as a failed attempt.
func (in *Update) AwaitsResources() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == AwaitingResourcesReason
}

// WasStale reports whether the Update changed nothing because the inputs or the state are no longer those of its plan. Another plan is
// made, and the Update does not count as a failed attempt.
func (in *Update) WasStale() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == PlanStaleReason
}

// WasCutOff reports whether the Update's operation ended, or may have ended, before Pulumi was done. It can have left a lock, and pending
// operations in the state.
func (in *Update) WasCutOff() bool {
	if !in.HasFailed() {
		return false
	}
	switch apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed).Reason {
	case InterruptedReason, TimeoutReason:
		return true
	case CanceledReason:
		return !in.Status.NotRun
	}
	return false
}

// SavesPlan reports whether the Update saves what it would change as a plan.
func (in *Update) SavesPlan() bool {
	return in.Spec.SavePlan != nil && *in.Spec.SavePlan
}

// ChangesNothing reports whether the Update's operation only shows what would be changed. A type that is not an operation changes nothing,
// either.
func (in *Update) ChangesNothing() bool {
	switch in.Spec.Type {
	case UpdateTypeUp:
		return false
	case UpdateTypeRefresh, UpdateTypeDestroy:
		return in.Spec.PreviewOnly != nil && *in.Spec.PreviewOnly && in.Spec.Plan == nil
	}
	return true
}

// waitingReasons are the reasons of an Update that waits for something that happens without a user, or for its Workspace, which reports its own
// problems.
var waitingReasons = []string{
	QueuedReason, ArtifactPendingReason, SourceDeliveryReason, UpdateProgressingReason,
	UpdateWorkspaceNotFoundReason, UpdateWorkspaceNotReadyReason, IncompatibleConfigurationReason,
}

// WaitingProblem returns the problem that prevents the Update from starting and that a user has to know. Both results are empty if there is
// none.
func (in *Update) WaitingProblem() (reason, message string) {
	condition := apimeta.FindStatusCondition(in.Status.Conditions, UpdateProgressing)
	if in.HasStarted() || condition == nil || slices.Contains(waitingReasons, condition.Reason) {
		return "", ""
	}
	return condition.Reason, condition.Message
}

// CalculateDigest returns what Digest has to be: the digest of the inputs, the changes, the state, the plan file and the text. Whoever
// approves Digest approves all of them.
func (in *SavedPlan) CalculateDigest() string {
	parts := []string{in.InputsDigest, in.ValuesDigest, in.ChangesDigest, in.StateDigest, in.FileDigest, in.TextDigest}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// HasText reports whether the text, compressed as in the Secret, is the one that describes the plan.
func (in *SavedPlan) HasText(compressed []byte) bool {
	sum := sha256.Sum256(compressed)
	return in.TextDigest == "sha256:"+hex.EncodeToString(sum[:])
}
