package workspace

import (
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/backoff"
)

// A Workspace is idle when it could run operations and had none to run for its idle timeout. Then its agent goes. It stays ready: the next
// Update wakes it, and the Updates of an idle Workspace wait until it is not idle any more.

// history is what the Updates of a Workspace say about it.
type history struct {
	// last is the last operation that ran; nil when there is none.
	last *autov1alpha1.Update
	// unfinished says that there are Updates that are not complete.
	unfinished bool
}

// idleTimeout is how long the Workspace may have nothing to do; zero when it may for ever.
func (r *Reconciler) idleTimeout(workspace *autov1alpha1.Workspace) time.Duration {
	if timeout := workspace.Spec.IdleTimeout; timeout != nil {
		return timeout.Duration
	}
	return r.IdleTimeout
}

// isIdle reports whether the Workspace says that it is idle.
func isIdle(workspace *autov1alpha1.Workspace) bool {
	return conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) == autov1alpha1.IdleReason
}

// idleIn returns how long it takes until the Workspace is idle, if no Update comes: zero when it is, and false when it will not be. One
// that cannot run operations is not: what is wrong would be forgotten.
func idleIn(workspace *autov1alpha1.Workspace, updates history, timeout time.Duration, now time.Time) (time.Duration, bool) {
	switch {
	case timeout == 0 || updates.unfinished || !conditions.IsTrue(workspace, autov1alpha1.WorkspaceReady):
		return 0, false
	case isIdle(workspace):
		return 0, true
	}
	since := conditions.GetLastTransitionTime(workspace, autov1alpha1.WorkspaceReady).Time
	if last := updates.last; last != nil && last.Status.EndTime.After(since) {
		since = last.Status.EndTime.Time
	}
	return backoff.Left(timeout, since, now), true
}
