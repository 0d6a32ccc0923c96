package v1alpha1

import (
	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// IsComplete tells whether the Update has ended, with whatever result, and its result is in the status.
func (in *Update) IsComplete() bool {
	return apimeta.IsStatusConditionTrue(in.Status.Conditions, UpdateComplete)
}

// HasStarted tells whether an agent has accepted the Update's operation. Before that an Update may be removed as if it had
// never been.
func (in *Update) HasStarted() bool {
	return in.Status.StartTime != nil || in.IsComplete()
}

// HasFailed tells whether the Update ended without success.
func (in *Update) HasFailed() bool {
	return in.IsComplete() && apimeta.IsStatusConditionTrue(in.Status.Conditions, UpdateFailed)
}

// WasInterrupted tells whether the Update's operation ended from outside: what it did is not known, and it is repeated
// without counting as a failed attempt.
func (in *Update) WasInterrupted() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == InterruptedReason
}

// WasLockedOut tells whether the Update's operation changed nothing because another process holds the lock of the stack: it is
// repeated without counting as a failed attempt.
func (in *Update) WasLockedOut() bool {
	failed := apimeta.FindStatusCondition(in.Status.Conditions, UpdateFailed)
	return in.HasFailed() && failed.Reason == UpdateConflictReason
}
