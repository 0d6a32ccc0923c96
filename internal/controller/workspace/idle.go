package workspace

import (
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/backoff"
)

// A Workspace is idle when it was ready and had no operation for its idle timeout (idleIn). Then the runtime ends its agent, and in a cluster
// its pod (decideOnIdle in internal/agentruntime/pod/decide.go, after askAgent). The Workspace stays ready. An Update ends that: it wakes the Workspace (requestsForUpdate), idleIn returns false, and Ensure gets a
// pod for it; the Update waits until then (workspaceProblem of the Update controller). With the process runtime, agents end by themselves as
// well, while the Workspace is not idle: see agentruntime.ErrResting.

// idleTimeout returns how long the Workspace may have nothing to do before it is idle; zero means forever.
func (r *Reconciler) idleTimeout(workspace *autov1alpha1.Workspace) time.Duration {
	if timeout := workspace.Spec.IdleTimeout; timeout != nil {
		return timeout.Duration
	}
	return r.IdleTimeout
}

// isIdle reports whether the status of the Workspace shows that it is idle.
func isIdle(workspace *autov1alpha1.Workspace) bool {
	return conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) == autov1alpha1.IdleReason
}

// idleIn returns the time until the Workspace is idle, if no Update comes: zero when it is idle already, and false when it will not be. A
// Workspace that cannot run operations does not become idle, because the status would lose what is wrong.
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
