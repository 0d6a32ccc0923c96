package stack

import (
	"fmt"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/internal/windows"
)

// windowsOf evaluates the windows of the Stack. Windows that are invalid allow nothing; desire has reported them.
func windowsOf(o observation) windows.State {
	if isHotFix(o) {
		return windows.State{Open: true}
	}
	state, err := windows.At(o.stack.Spec.Windows, o.now)
	if err != nil {
		return windows.State{Message: err.Error()}
	}
	return state
}

// isHotFix reports whether somebody lets the Stack have a revision at once, and it was not updated to that yet. What comes after it waits for a
// window again.
func isHotFix(o observation) bool {
	last := o.stack.Status.LastUpdate
	return o.artifact != nil && o.stack.DeletionTimestamp.IsZero() && (last == nil || last.LastSuccessfulCommit != o.artifact.Commit()) &&
		waves.IsReleasedByHand(o.stack, autov1alpha1.RolloutRevision{Revision: o.artifact.Revision, Digest: o.artifact.Digest})
}

// shut returns what to do while the windows of the Stack are closed, before anything is asked of others for an update that cannot begin; nil when
// they matter to nothing.
func shut(o observation, d decision) *decision {
	next := decideOnApproval(o, d)
	if held := decideOnWindows(o, next); next.action == actionUpdate && held.action != actionUpdate {
		return &held
	}
	return nil
}

// decideOnWindows holds an update that changes something back until the windows of the Stack allow it. What only makes a plan passes.
//
// A Stack whose last update did all that the Stack itself asks for stays ready: it is what its source, a Secret, drift or a resync asks for
// that waits.
func decideOnWindows(o observation, d decision) decision {
	if d.action != actionUpdate || d.plans || d.kind == autov1alpha1.UpdateTypePreview || len(o.stack.Spec.Windows) == 0 {
		return d
	}
	state := windowsOf(o)
	if state.Open {
		return d
	}
	last, after := o.stack.Status.LastUpdate, untilEdge(o, state)
	failed := last != nil && last.State == pulumiv1.StackUpdateFailed
	if failed && !d.fresh {
		next := decideToRetry(o, after)
		next.message = fmt.Sprintf("%s, and %s: %s%s", describeFailure(last), state.Message, last.Message, deletionHint(o.stack))
		return next
	}
	if d.applies {
		after = soonest(after, untilExpiry(o))
	}
	wait := decision{action: actionHold, wake: byTime, after: after, reason: pulumiv1.WindowClosedReason, cause: d.cause, driftDigest: d.driftDigest}
	wait.quiet = last != nil && !failed && (d.cause != pulumiv1.PlanForChange || !somebodyAsks(o, d))
	if wait.message = state.Message; !wait.quiet {
		wait.message = fmt.Sprintf("%s: %s%s", d.message, state.Message, deletionHint(o.stack))
	}
	return wait
}

// rarely is when a Stack is looked at again that waits for a window, and none opens: only an edit changes that.
const rarely = 24 * time.Hour

// untilEdge returns the time until a window opens or closes; rarely when none does.
func untilEdge(o observation, state windows.State) time.Duration {
	if state.Next.IsZero() {
		return rarely
	}
	return max(state.Next.Sub(o.now), time.Second)
}

// isShut reports whether the Update waits to be started and may no longer be, because a window closed meanwhile.
func isShut(o observation) bool {
	return waitsForWindows(o) && !windowsOf(o).Open
}

// waitsForWindows reports whether the current Update waits to be started and windows matter to it.
func waitsForWindows(o observation) bool {
	return len(o.stack.Spec.Windows) > 0 && !o.update.HasStarted() && !o.update.ChangesNothing()
}
