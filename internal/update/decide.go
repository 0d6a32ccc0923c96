package update

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

const (
	// cancelPatience bounds how long the deletion of an Update waits for an agent that cannot be reached. It is longer
	// than the grace period of a workspace pod, so that a pod which ends in an orderly way is heard.
	cancelPatience = 15 * time.Minute
	// reconnectInterval is how often an Update looks for the agent of its running operation; its observer looks too.
	reconnectInterval = 30 * time.Second
	// transientInterval is the first wait after a failure that usually passes by itself.
	transientInterval = 5 * time.Second
	// briefWait is how old an Update may be, to the second, before its status shows a wait that is usually over sooner.
	briefWait = 2 * time.Second
	// followInterval is how often a running operation is looked at even when its observer has nothing to tell.
	followInterval = 10 * time.Minute
)

// observation is everything that a decision is made from. What an earlier fact makes pointless to know is not looked
// at: the fields say when.
type observation struct {
	now    time.Time
	update *autov1alpha1.Update
	// workspace is nil when there is none. Not looked at when the Update is complete, or abandoned.
	workspace *autov1alpha1.Workspace
	// agent is what the agent knows of the operation.
	agent agentView
	// ahead is the name of an older Update of the Workspace that is not complete, or empty. From here on nothing is
	// looked at unless an operation can start.
	ahead string
	// source is the artifact that the operation runs, and where it comes from; nil when its program is elsewhere.
	source *autov1alpha1.UpdateSource
	// artifact is how the artifact stands in the store.
	artifact artifactView
	// request is the operation; nil when requestError says why it cannot be described.
	request      *proto.StartOperationRequest
	requestError error
	// references is the digest of the versions of the watched Secrets and ConfigMaps whose values are in the request.
	references string
}

// agentView is the answer of the agent; it is empty when there was no reason, or nobody, to ask.
type agentView struct {
	// err is why there is no answer: runtime.ErrNoAgent, or an error of the client.
	err error
	// operation is nil when the agent does not know it.
	operation *proto.Operation
	// resultLost is true when the agent knows how the operation ended and cannot read its outputs any more.
	resultLost bool
}

// artifactView is how the artifact of an operation stands in the store; an operation without one has it ready.
type artifactView struct {
	ready bool
	// digest is the one that it is stored under.
	digest string
	err    error
}

// action is what one reconcile does.
type action string

const (
	// actionRetire ends the care for a complete Update: the agent forgets the operation, the finalizer goes, and in the end
	// the Update itself.
	actionRetire action = "retire"
	// actionFinish completes an Update without a result of the agent.
	actionFinish action = "finish"
	// actionRecord takes the result of an operation that ended.
	actionRecord action = "record"
	// actionFollow shows the progress of an operation and sees to it that it is observed.
	actionFollow action = "follow"
	// actionCancel asks the agent to end the operation, and follows it to its end.
	actionCancel action = "cancel"
	// actionReconnect sees to it that an operation whose agent does not answer is observed when it answers again.
	actionReconnect action = "reconnect"
	// actionStart starts the operation.
	actionStart action = "start"
	// actionWait shows what the operation waits for.
	actionWait action = "wait"
)

// waker names what brings an Update back, beside the time in the decision.
type waker string

const (
	// byWorkspace is the watch on Workspaces.
	byWorkspace waker = "workspace"
	// byUpdates is the watch on the other Updates of the Workspace.
	byUpdates waker = "updates"
	// byObserver is the goroutine that observes the operation.
	byObserver waker = "observer"
	// bySource is an answer of a git server.
	bySource waker = "source"
	// byFetch is the end of a download or a checkout.
	byFetch waker = "fetch"
	// byDelivery is the end of the delivery to the agent.
	byDelivery waker = "delivery"
	// byTime is nothing but the time in the decision.
	byTime waker = "time"
	// byNothing stands for decisions after which nothing is left to do, or whose action decides on.
	byNothing waker = "nothing"
)

// decision is what decide chose, and what wakes the Update afterwards.
type decision struct {
	action action
	// reason and message explain an Update that waits or is finished.
	reason, message string
	// wake names the watch that brings the Update back.
	wake waker
	// after is when it comes back without one; zero means that the watch is enough.
	after time.Duration
	// brief says that the wait is a step on the way that usually takes moments.
	brief bool
}

// unshown is for how much longer a wait that is probably a brief one is kept out of the status of a new Update: to write each
// step down costs the API server, and everybody who watches, more than the step itself.
func (d decision) unshown(o *observation) time.Duration {
	if !d.brief || len(o.update.Status.Conditions) > 0 {
		return 0
	}
	return max(0, briefWait-o.now.Sub(o.update.CreationTimestamp.Time))
}

// decide is the whole policy of the Update controller.
func decide(o *observation) decision {
	switch {
	case o.update.IsComplete():
		return decision{action: actionRetire, wake: byNothing}
	case isAbandoned(o.update):
		return interrupted("the update was started by a controller that is gone; its outcome is not known")
	case !o.update.DeletionTimestamp.IsZero():
		return decideOnDeletion(o)
	case o.update.HasStarted() || o.agent.operation != nil:
		return decideOnOperation(o)
	}
	return decideOnStart(o)
}

// cancelRequested tells whether somebody asked for the end of the operation. Its Update stays.
func cancelRequested(update *autov1alpha1.Update) bool {
	return update.Annotations[pulumiv1.CancelUpdateAnnotation] == "true"
}

// isAbandoned tells whether the Update was started by the Pulumi Kubernetes Operator, whose operations end with it. This controller
// writes when an operation started; that one wrote it at the end only.
func isAbandoned(update *autov1alpha1.Update) bool {
	return update.Status.StartTime == nil && !update.IsComplete() && conditions.IsTrue(update, autov1alpha1.UpdateProgressing)
}

// decideOnDeletion ends an Update that somebody deleted. It never waits for an agent that is gone.
func decideOnDeletion(o *observation) decision {
	canceled := decision{action: actionFinish, reason: autov1alpha1.CanceledReason, wake: byNothing,
		message: "the update was deleted before its operation started"}
	if o.update.HasStarted() {
		canceled.message = "the update was deleted, and there is no agent any more that could run its operation"
	}
	switch {
	case o.agent.operation != nil && o.agent.operation.GetState().Final():
		return decision{action: actionRecord, wake: byNothing}
	case o.agent.operation != nil:
		return decision{action: actionCancel, wake: byObserver, after: reconnectInterval}
	case o.agent.err == nil || agentGone(o):
		return canceled
	case o.now.Sub(o.update.DeletionTimestamp.Time) > cancelPatience:
		canceled.message = "the update was deleted and its agent did not answer for " + cancelPatience.String() +
			"; whether its operation ended is not known"
		return canceled
	}
	return decision{action: actionWait, reason: autov1alpha1.UpdateTransientFailureReason, wake: byTime,
		message: "cannot cancel the operation yet: " + o.agent.err.Error(),
		after:   growingDelay(o.now.Sub(o.update.DeletionTimestamp.Time), 2*time.Second, time.Minute)}
}

// agentGone tells whether nothing can run the operation any more. That there is no agent right now proves little: a controller
// that was just started may not have found it yet, and one that crashed comes back.
func agentGone(o *observation) bool {
	switch {
	case !errors.Is(o.agent.err, runtime.ErrNoAgent):
		return false
	case !o.workspace.DeletionTimestamp.IsZero():
		return true
	}
	return !o.update.HasStarted() && workspaceProblem(o.workspace) != ""
}

// decideOnOperation follows an operation that was started, in this life of the controller or an earlier one.
func decideOnOperation(o *observation) decision {
	switch {
	case o.workspace == nil:
		return interrupted("the workspace was deleted while the operation ran; its outcome is not known")
	case o.agent.err != nil:
		// The agent, or the way to it, is being replaced. The operation is on its disk.
		return decision{action: actionReconnect, wake: byObserver, after: reconnectInterval,
			message: "the agent does not answer, trying again: " + o.agent.err.Error()}
	case o.agent.operation == nil:
		return interrupted("the workspace was replaced while the operation ran; its outcome is not known")
	case o.agent.operation.GetState().Final():
		return decision{action: actionRecord, wake: byNothing}
	case cancelRequested(o.update):
		return decision{action: actionCancel, wake: byObserver, after: reconnectInterval}
	}
	return decision{action: actionFollow, wake: byObserver, after: followInterval}
}

func interrupted(message string) decision {
	return decision{action: actionFinish, reason: autov1alpha1.InterruptedReason, message: message, wake: byNothing}
}

// decideOnStart starts an operation when all that it needs is there, and otherwise says what is missing.
func decideOnStart(o *observation) decision {
	switch {
	case cancelRequested(o.update) && o.agent.err == nil:
		return decision{action: actionFinish, reason: autov1alpha1.CanceledReason, wake: byNothing,
			message: "the update was cancelled before its operation started"}
	case o.workspace == nil:
		return decision{action: actionWait, reason: autov1alpha1.UpdateWorkspaceNotFoundReason, wake: byWorkspace,
			message: fmt.Sprintf("workspace %q does not exist", o.update.Spec.WorkspaceName)}
	case workspaceProblem(o.workspace) != "":
		return decision{action: actionWait, reason: workspaceReason(o.workspace), wake: byWorkspace,
			message: workspaceProblem(o.workspace), brief: conditions.IsTrue(o.workspace, autov1alpha1.WorkspaceReady)}
	case o.ahead != "":
		return decision{action: actionWait, reason: reasonQueued, wake: byUpdates,
			message: fmt.Sprintf("waits for update %q of the same workspace", o.ahead)}
	case errors.Is(o.agent.err, runtime.ErrNoAgent):
		// The Workspace is ready, so the agent is about to be found, or to come back.
		return transient(o, o.agent.err, time.Second)
	case o.agent.err != nil:
		return transient(o, o.agent.err, transientInterval)
	case o.artifact.err != nil:
		return decideOnFetchError(o)
	case !o.artifact.ready:
		return keepingProblem(o, decision{action: actionWait, reason: reasonArtifactPending, wake: byFetch,
			message: "the artifact is being fetched", brief: true})
	case o.requestError != nil:
		return decideOnRequestError(o)
	}
	return decision{action: actionStart, wake: byObserver}
}

// workspaceReason is the reason of an Update that waits for the workspace.
func workspaceReason(workspace *autov1alpha1.Workspace) string {
	if conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) == autov1alpha1.IncompatibleConfigurationReason {
		return autov1alpha1.IncompatibleConfigurationReason
	}
	return autov1alpha1.UpdateWorkspaceNotReadyReason
}

// workspaceProblem says why operations cannot run in the workspace; empty when they can. A readiness of an earlier
// generation does not count: the agent may be about to be replaced.
func workspaceProblem(workspace *autov1alpha1.Workspace) string {
	name := workspace.Name
	if !workspace.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("workspace %q is being deleted", name)
	}
	ready := conditions.Get(workspace, autov1alpha1.WorkspaceReady)
	switch {
	case ready == nil:
		return fmt.Sprintf("workspace %q is not ready yet", name)
	case ready.Status != metav1.ConditionTrue:
		return fmt.Sprintf("workspace %q is not ready: %s: %s", name, ready.Reason, ready.Message)
	case workspace.Status.ObservedGeneration != workspace.Generation:
		return fmt.Sprintf("workspace %q is being changed", name)
	}
	return ""
}

// decideOnRequestError tells what may appear by itself from what only an edit can mend.
func decideOnRequestError(o *observation) decision {
	var missing *missingError
	if errors.As(o.requestError, &missing) {
		return decision{action: actionWait, reason: pulumiv1.SecretNotFoundReason, wake: byTime, message: missing.Error(),
			// Those that are watched wake the Update when they appear. The others have to be looked for.
			after: retryDelay(o, pulumiv1.SecretNotFoundReason, 2*time.Second, 30*time.Second)}
	}
	var invalid *invalidError
	if errors.As(o.requestError, &invalid) {
		return decision{action: actionFinish, reason: autov1alpha1.ConfigInvalidReason, message: invalid.Error(), wake: byNothing}
	}
	return transient(o, o.requestError, transientInterval)
}

// transient waits for what usually passes by itself, for shortest at first.
func transient(o *observation, err error, shortest time.Duration) decision {
	return decision{action: actionWait, reason: autov1alpha1.UpdateTransientFailureReason, message: err.Error() + "; it is tried again", wake: byTime,
		after: retryDelay(o, autov1alpha1.UpdateTransientFailureReason, shortest, time.Minute)}
}

// retryDelay is the time to the next attempt of an Update that waits for a reason since the time in its condition.
func retryDelay(o *observation, reason string, shortest, longest time.Duration) time.Duration {
	progressing := conditions.Get(o.update, autov1alpha1.UpdateProgressing)
	if progressing == nil || progressing.Reason != reason {
		return shortest
	}
	return growingDelay(o.now.Sub(progressing.LastTransitionTime.Time), shortest, longest)
}

// growingDelay is half of the time waited so far, within the bounds: the time between attempts grows by half, and nothing
// has to be remembered for it.
func growingDelay(waited, shortest, longest time.Duration) time.Duration {
	return min(max(waited/2, shortest), longest)
}
