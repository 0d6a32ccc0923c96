package stack

import (
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// showProgress shows how far the Update is, or what keeps it from starting.
func (r *Reconciler) showProgress(o *observation, update *autov1alpha1.Update) outcome {
	if workspaceHasFailed(o.workspace) {
		return r.showWorkspaceFailure(o.stack, workspaceFailureOf(o.workspace))
	}
	reason, message := update.WaitingProblem()
	switch {
	case reason != "":
		if update.Spec.Type == autov1alpha1.UpdateTypeDestroy {
			message += "; " + orphanHint
		}
		known := conditions.GetReason(o.stack, meta.ReadyCondition) == reason
		markWaiting(o.stack, reason, message)
		if reason == autov1alpha1.UpdateTransientFailureReason {
			return outcome{} // most end soon: there is an event about one that does not
		}
		// The event is recorded once for each reason, and only for a problem that a human may have to fix.
		return r.warn(o.stack, known, reason, message)
	case conflictShownFor(o.stack, update, o.now) > 0:
		return outcome{after: conflictShownFor(o.stack, update, o.now)}
	case keepsReady(o.stack):
		acceptGeneration(o.stack) // an edit that changes nothing for the update, such as one of spec.drift
	case failsRepeatedly(o.stack):
		last := o.stack.Status.LastUpdate
		markStalled(o.stack, pulumiv1.UpdateFailedReason,
			fmt.Sprintf("%s, another attempt is on its way: %s", describeFailure(last), last.Message))
		return outcome{announcesProblem: true}
	default:
		markProgressing(o.stack, whileDeleted(o.stack, update, describeProgress(o.workspace, update)))
	}
	return outcome{}
}

// whileDeleted adds to a message about the progress of an Update what happens after it, if the Stack is being deleted.
func whileDeleted(stack *pulumiv1.Stack, update *autov1alpha1.Update, message string) string {
	switch {
	case stack.DeletionTimestamp.IsZero():
	case nothingToDestroy(stack) != "":
		return message + "; the stack is deleted when the update has ended"
	case update.Spec.Type != autov1alpha1.UpdateTypeDestroy:
		return message + "; the resources are destroyed when the update has ended"
	}
	return message
}

// describeProgress returns one line about an Update that has not ended. If the Workspace is ready, an Update that the Update controller has
// not seen yet is described as if it had started, as it will have a moment later.
func describeProgress(workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) string {
	unseen := workspace != nil && workspace.CanRunOperations() && len(update.Status.Conditions) == 0
	if update.HasStarted() || unseen {
		return fmt.Sprintf("stack is being processed: %s by update %s", update.Spec.Type, update.Name)
	}
	message, waits := "waiting for workspace readiness", conditions.GetMessage(update, autov1alpha1.UpdateProgressing)
	switch {
	case conditions.GetReason(update, autov1alpha1.UpdateProgressing) == autov1alpha1.QueuedReason:
		return fmt.Sprintf("update %s %s", update.Name, waits)
	case waits != "":
		message += ": " + waits
	}
	return message
}

// workspaceFailure is why operations cannot run in a Workspace, if a human may have to fix that.
type workspaceFailure struct {
	// reason goes into the Stack's conditions.
	reason string
	// stalled is true when the Workspace is Stalled.
	stalled bool
	// prefix names the Workspace's own reason. The detail that follows it may differ from one reconcile to the next.
	prefix, detail string
}

// workspaceFailureOf returns the failure of the Workspace. It returns the zero value when there is none, when the Workspace is only
// starting, or when its status is about an earlier generation.
func workspaceFailureOf(workspace *autov1alpha1.Workspace) workspaceFailure {
	if workspace == nil || !workspace.DeletionTimestamp.IsZero() {
		return workspaceFailure{}
	}
	ready := conditions.Get(workspace, autov1alpha1.WorkspaceReady)
	stalled := conditions.IsStalled(workspace)
	failing := conditions.GetReason(workspace, autov1alpha1.WorkspaceReconciling) == meta.ProgressingWithRetryReason
	if ready == nil || workspace.CanRunOperations() || ready.ObservedGeneration != workspace.Generation || !stalled && !failing {
		return workspaceFailure{}
	}
	failure := workspaceFailure{reason: pulumiv1.WorkspaceNotReadyReason, stalled: stalled, detail: ready.Message,
		prefix: fmt.Sprintf("workspace %q is not ready (%s): ", workspace.Name, ready.Reason)}
	switch {
	case stalled && ready.Reason == autov1alpha1.IncompatibleConfigurationReason:
		failure.reason = pulumiv1.PulumiVersionTooLowReason
	case stalled:
		failure.reason = pulumiv1.WorkspaceFailedReason
	}
	return failure
}

func workspaceHasFailed(workspace *autov1alpha1.Workspace) bool {
	return workspaceFailureOf(workspace) != workspaceFailure{}
}

// showWorkspaceFailure shows the failure of the Workspace that an update needs. The failure does not count as an attempt, and it disappears
// with its cause: the watch on Workspaces wakes the Stack. The event is recorded once for each reason.
func (r *Reconciler) showWorkspaceFailure(stack *pulumiv1.Stack, failure workspaceFailure) outcome {
	known := conditions.GetReason(stack, meta.ReadyCondition) == failure.reason &&
		strings.HasPrefix(conditions.GetMessage(stack, meta.ReadyCondition), failure.prefix)
	message := failure.prefix + failure.detail
	switch {
	case stack.DeletionTimestamp.IsZero():
	case nothingToDestroy(stack) != "":
		message += "; the stack is deleted when the update has ended; " + orphanHint
	default:
		message += "; the resources are destroyed once the workspace is ready; " + orphanHint
	}
	if failure.stalled {
		markStalled(stack, failure.reason, message)
	} else {
		markWaiting(stack, failure.reason, message)
	}
	return r.warn(stack, known, failure.reason, message)
}
