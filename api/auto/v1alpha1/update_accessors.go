package v1alpha1

import (
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// IsComplete reports whether the Update has ended, with whatever result, and its result is in the status.
func (in *Update) IsComplete() bool {
	return apimeta.IsStatusConditionTrue(in.Status.Conditions, UpdateComplete)
}

// HasStarted reports whether an agent has accepted the Update's operation. Before that an Update may be removed as if it had
// never been.
func (in *Update) HasStarted() bool {
	return in.Status.StartTime != nil || in.IsComplete()
}

// HasFailed reports whether the Update ended without success.
func (in *Update) HasFailed() bool {
	return in.IsComplete() && apimeta.IsStatusConditionTrue(in.Status.Conditions, UpdateFailed)
}

// WasInterrupted reports whether the Update's operation ended from outside: what it did is not known, and it is repeated
// without counting as a failed attempt.
func (in *Update) WasInterrupted() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == InterruptedReason
}

// WasLockedOut reports whether the Update's operation changed nothing because another process holds the lock of the stack: it is
// repeated without counting as a failed attempt.
func (in *Update) WasLockedOut() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == UpdateConflictReason
}

// WasStale reports whether the Update changed nothing because its plan is not about what is there now: another plan is made, without
// counting a failed attempt.
func (in *Update) WasStale() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == PlanStaleReason
}

// SavesPlan reports whether the Update keeps what it would change as a plan.
func (in *Update) SavesPlan() bool {
	return in.Spec.SavePlan != nil && *in.Spec.SavePlan
}

// ChangesNothing reports whether the Update's operation only shows what would be changed. What is no operation changes nothing, either.
func (in *Update) ChangesNothing() bool {
	switch in.Spec.Type {
	case UpdateTypeUp:
		return false
	case UpdateTypeRefresh, UpdateTypeDestroy:
		return in.Spec.PreviewOnly != nil && *in.Spec.PreviewOnly
	}
	return true
}

// steps are the reasons of an Update that waits for what comes by itself, or for its Workspace, which says itself what is wrong with it.
var steps = []string{
	QueuedReason, ArtifactPendingReason, SourceDeliveryReason, UpdateProgressingReason,
	UpdateWorkspaceNotFoundReason, UpdateWorkspaceNotReadyReason, IncompatibleConfigurationReason,
}

// WaitingProblem returns the problem that keeps the Update from starting, of which a user has to know; empty when it is on its way.
func (in *Update) WaitingProblem() (reason, message string) {
	condition := apimeta.FindStatusCondition(in.Status.Conditions, UpdateProgressing)
	if in.HasStarted() || condition == nil || slices.Contains(steps, condition.Reason) {
		return "", ""
	}
	return condition.Reason, condition.Message
}
