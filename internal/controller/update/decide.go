package update

import (
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
)

const (
	// unreachableAgentTimeout bounds how long the deletion of an Update waits for an agent that cannot be reached. It is not the timeout of an
	// operation, which is spec.timeout. It is longer than the grace period of a workspace pod, so that the agent of a pod that ends in an
	// orderly way can still report how its operation ended.
	unreachableAgentTimeout = 15 * time.Minute
	// reconnectInterval is how often an Update is reconciled whose agent does not answer, or has been asked to cancel; its watch reports
	// earlier.
	reconnectInterval = 30 * time.Second
	// transientInterval is the first wait after a failure that usually passes by itself.
	transientInterval = 5 * time.Second
	// briefWait is for how long the status does not show a wait that usually ends sooner. The age of an Update is known to the second.
	briefWait = 2 * time.Second
	// followInterval is how often a running operation is observed even when its watch reports nothing.
	followInterval = 10 * time.Minute
	// artifactRetryInterval and artifactRetryLimit are the shortest and the longest time between two attempts to fetch or deliver an artifact
	// that was refused. When the source has another artifact, the Stack learns of it without these waits, and replaces the Update.
	artifactRetryInterval = 3 * time.Second
	artifactRetryLimit    = 5 * time.Minute
	// approvalInterval is how often an Update that waits for an approval reads the Stack again; the watch reports a change of the plan
	// earlier.
	approvalInterval = 2 * time.Second
	// busyInterval is how often the controller asks an agent again that is busy with something else.
	busyInterval = 2 * time.Second
)

// action is what one reconcile does.
type action string

const (
	// actionFinalize ends the work for a complete Update: the agent forgets the operation, the finalizer is removed, and in the end the Update
	// is deleted.
	actionFinalize action = "finalize"
	// actionFinish completes an Update without a result of the agent.
	actionFinish action = "finish"
	// actionRecord records the result of an operation that ended.
	actionRecord action = "record"
	// actionFollow shows the progress of an operation and makes sure that it is watched.
	actionFollow action = "follow"
	// actionCancel asks the agent to end the operation, and follows it to its end.
	actionCancel action = "cancel"
	// actionRepeat resets an operation that was lost and has changed nothing to not started, so that it is started once more.
	actionRepeat action = "repeat"
	// actionReconnect keeps watching an operation whose agent does not answer, so that it is followed when the agent answers again. Without an
	// agent, the operation holds no slot meanwhile.
	actionReconnect action = "reconnect"
	// actionQueue asks for a slot for the operation. Then the agent is asked, if there is a slot or the operation may run already, and the
	// controller decides again.
	actionQueue action = "queue"
	// actionAsk asks the agent whether it knows the operation. Then the controller decides again.
	actionAsk action = "ask"
	// actionWake starts an agent that rests. Then the agent is asked, and the controller decides again.
	actionWake action = "wake"
	// actionStart starts the operation. The agent may refuse, and then the controller decides again.
	actionStart action = "start"
	// actionDeliver brings the artifact to the agent.
	actionDeliver action = "deliver"
	// actionDeliverPlan brings the plan to the agent.
	actionDeliverPlan action = "deliver plan"
	// actionStorePlan brings the plan that an operation saved from the agent into Secrets.
	actionStorePlan action = "store plan"
	// actionStoreOutputs puts the outputs of the stack into a Secret. Then the controller decides again.
	actionStoreOutputs action = "store outputs"
	// actionWait shows what the operation waits for.
	actionWait action = "wait"
)

// waker names what brings an Update back, besides the time in the decision.
type waker string

const (
	// byWorkspace is the watch on Workspaces.
	byWorkspace waker = "workspace"
	// byUpdates is the watch on the other Updates of the Workspace.
	byUpdates waker = "updates"
	// byStack is the watch on the plans of Stacks.
	byStack waker = "stack"
	// byObserver is the goroutine that watches the operation.
	byObserver waker = "observer"
	// bySource is an answer of a git server.
	bySource waker = "source"
	// byFetch is the end of a download or a checkout.
	byFetch waker = "fetch"
	// byDelivery is the end of the delivery to the agent.
	byDelivery waker = "delivery"
	// byTurn is the end of another operation.
	byTurn waker = "turn"
	// byTime is nothing but the time in the decision.
	byTime waker = "time"
	// byNothing stands for decisions after which nothing is left to do.
	byNothing waker = "nothing"
	// byDecision stands for decisions that another one follows at once.
	byDecision waker = "decision"
)

// decision is what decide chose, and what wakes the Update afterwards.
type decision struct {
	action action
	// reason and message explain an Update that waits or is finished.
	reason, message string
	// wake names the watch that brings the Update back.
	wake waker
	// after is when the Update comes back even if the watch reports nothing; zero means that the watch is enough.
	after time.Duration
	// brief is true for a wait that usually takes moments.
	brief bool
}

// hiddenFor returns for how much longer a brief wait stays out of the status of an Update that is new, or whose turn has just come. Writing
// each of these waits would cost the API server, and everybody who watches, more than the wait itself.
func (d decision) hiddenFor(o *observation) time.Duration {
	since := o.turn.granted
	if len(o.update.Status.Conditions) == 0 {
		since = o.update.CreationTimestamp.Time
	}
	if !d.brief || since.IsZero() {
		return 0
	}
	return backoff.Left(briefWait, since, o.now)
}

// finish ends an Update whose operation has no result.
func finish(reason, message string) decision {
	return decision{action: actionFinish, reason: reason, message: message, wake: byNothing}
}

func interrupted(message string) decision {
	return finish(autov1alpha1.InterruptedReason, message)
}

func waitOn(reason, message string, wake waker) decision {
	return decision{action: actionWait, reason: reason, message: message, wake: wake}
}

func retryAfter(reason, message string, after time.Duration) decision {
	return decision{action: actionWait, reason: reason, message: message, wake: byTime, after: after}
}

// transient waits after an error that usually passes by itself. The first wait is shortest.
func transient(o *observation, err error, shortest time.Duration) decision {
	const reason = autov1alpha1.UpdateTransientFailureReason
	return retryAfter(reason, err.Error()+"; it is tried again", retryDelay(o, reason, shortest, time.Minute))
}

// decide is the whole policy of the Update controller.
func decide(o *observation) decision {
	switch {
	case o.update.IsComplete():
		return decision{action: actionFinalize, wake: byNothing}
	case isAbandoned(o.update):
		return interrupted("the update was started by a controller that is gone; its outcome is not known")
	case errors.Is(o.agent.err, agentruntime.ErrResting) && o.woken == nil:
		return decision{action: actionWake, wake: byDecision}
	case !o.update.DeletionTimestamp.IsZero():
		return decideOnDeletion(o)
	case o.update.HasStarted() || o.agent.operation != nil:
		return decideOnOperation(o)
	}
	d := decideOnStart(o)
	if d.action == actionFinish && !o.agent.asked && o.workspace != nil && !o.inOtherShard {
		// The controller before this one may have ended before it could write that the operation was started.
		return decision{action: actionAsk, wake: byDecision}
	}
	return d
}

// isAbandoned reports whether the Update was started by the Pulumi Kubernetes Operator, whose operations end when the operator does. This
// controller writes status.startTime when an operation starts; the operator wrote it only at the end.
func isAbandoned(update *autov1alpha1.Update) bool {
	return update.Status.StartTime == nil && !update.IsComplete() && conditions.IsTrue(update, autov1alpha1.UpdateProgressing)
}

// decideOnDeletion ends an Update that somebody deleted. It never waits for an agent that is gone.
func decideOnDeletion(o *observation) decision {
	deletedFor := o.now.Sub(o.update.DeletionTimestamp.Time)
	switch {
	case o.agent.operation != nil && o.agent.operation.GetState().Final():
		return decision{action: actionRecord, wake: byNothing}
	case o.agent.operation != nil:
		return decision{action: actionCancel, wake: byObserver, after: reconnectInterval}
	case (o.agent.err == nil || agentGone(o)) && o.update.HasStarted():
		return finish(autov1alpha1.CanceledReason, "the update was deleted, and no agent is left that could run its operation")
	case o.agent.err == nil || agentGone(o):
		return finish(autov1alpha1.CanceledReason, "the update was deleted before its operation started")
	case deletedFor > unreachableAgentTimeout:
		return finish(autov1alpha1.CanceledReason, "the update was deleted and its agent did not answer for "+unreachableAgentTimeout.String()+
			"; whether its operation ended is not known")
	}
	return retryAfter(autov1alpha1.UpdateTransientFailureReason, "cannot cancel the operation yet: "+o.agent.err.Error(),
		backoff.Proportional(deletedFor, 2*time.Second, time.Minute))
}

// agentGone reports whether no agent can run the operation any longer. It is not enough that there is no agent right now: a controller that
// was just started may not have found the agent yet, and an agent that crashed comes back.
func agentGone(o *observation) bool {
	switch {
	case !errors.Is(o.agent.err, agentruntime.ErrNoAgent):
		return false
	case !o.workspace.DeletionTimestamp.IsZero():
		return true
	}
	return !o.update.HasStarted() && workspaceProblem(o.workspace) != ""
}

// isLost reports whether there is no agent for an operation that was started, and the status of the Workspace, which the controller before this
// one may have written, says so too. An agent that comes back may still have the result.
func isLost(o *observation) bool {
	return errors.Is(o.agent.err, agentruntime.ErrNoAgent) && (!o.workspace.CanRunOperations() || !o.workspace.DeletionTimestamp.IsZero())
}

// decideOnOperation follows an operation that was started by this controller or an earlier one; why it runs once, once.go says. It cancels the operation when an annotation
// of the Update requests that. Three other functions decide on cancelling an operation: decideOnDeletion when the Update was deleted,
// internal/controller/stack.cancels when the Stack is suspended and its annotation requests that, and internal/agent/server.executor.run when the
// operation exceeds its timeout.
func decideOnOperation(o *observation) decision {
	switch {
	case o.workspace == nil:
		return interrupted("the workspace was deleted while the operation ran; its outcome is not known")
	case isLost(o) && pulumiv1.CancelRequested(o.update):
		return interrupted("the update was cancelled, and no agent is left that could run its operation; its outcome is not known")
	case o.agent.err != nil:
		// The agent, or the connection to it, is being replaced. If the agent's disk survives, so does its record of the operation.
		return decision{action: actionReconnect, wake: byObserver, after: reconnectInterval,
			message: "the agent does not answer, trying again: " + o.agent.err.Error()}
	case o.agent.operation == nil && mayRepeat(o):
		return decision{action: actionRepeat, reason: autov1alpha1.QueuedReason, wake: byTime, after: time.Second,
			message: "the workspace was replaced before there was a result; nothing was changed, so it is run once more"}
	case o.agent.operation == nil:
		return interrupted("the workspace was replaced while the operation ran; its outcome is not known")
	case savesPlan(o.update, o.agent.operation):
		return decideOnStorage(o)
	case hasOutputs(o.agent.operation):
		return decideOnOutputs(o)
	case o.agent.operation.GetState().Final():
		return decision{action: actionRecord, wake: byNothing}
	case pulumiv1.CancelRequested(o.update):
		return decision{action: actionCancel, wake: byObserver, after: reconnectInterval}
	}
	return decision{action: actionFollow, wake: byObserver, after: followInterval}
}

// mayRepeat reports whether an operation that was lost is run once more: it changes nothing, so it does not matter how far it came. After
// that the Stack decides how often its operation is repeated, with waits in between.
func mayRepeat(o *observation) bool {
	return o.update.ChangesNothing() && !wasRepeated(o.update) && !pulumiv1.CancelRequested(o.update) && o.workspace.DeletionTimestamp.IsZero()
}

// decideOnStart starts an operation when all that it needs is there, and otherwise says what is missing.
func decideOnStart(o *observation) decision {
	switch {
	case pulumiv1.CancelRequested(o.update) && (o.agent.err == nil || agentGone(o)):
		return finish(autov1alpha1.CanceledReason, "the update was cancelled before its operation started")
	case o.workspace == nil:
		return waitOn(autov1alpha1.UpdateWorkspaceNotFoundReason, fmt.Sprintf("workspace %q does not exist", o.update.Spec.WorkspaceName), byWorkspace)
	case o.inOtherShard:
		return waitForShard(o.workspace)
	case o.approval.problem != "":
		return decideOnApproval(o)
	case workspaceProblem(o.workspace) != "":
		return decideOnWorkspace(o.workspace)
	case incomplete(o.update) != "":
		return finish(autov1alpha1.AbortedReason, incomplete(o.update))
	case o.ahead != "":
		return waitOn(autov1alpha1.QueuedReason, fmt.Sprintf("waits for update %q of the same workspace", o.ahead), byUpdates)
	case errors.Is(o.agent.err, agentruntime.ErrNoAgent):
		// The Workspace is ready, so the agent is about to be found, or to come back.
		return transient(o, o.agent.err, time.Second)
	case o.agent.err != nil:
		return transient(o, o.agent.err, transientInterval)
	case o.artifact.err != nil:
		return decideOnFetchError(o)
	case !o.artifact.ready:
		return waitForArtifact(o, actionWait, autov1alpha1.ArtifactPendingReason, "the artifact is being fetched", byFetch)
	case !o.turn.asked:
		return decision{action: actionQueue, wake: byDecision}
	case o.turn.place > 0:
		return decision{action: actionWait, reason: autov1alpha1.QueuedReason, message: o.turn.String(), wake: byTurn, after: o.turn.again, brief: true}
	case o.plan.problem != nil:
		return finish(o.plan.problem.reason, o.plan.problem.Error())
	case o.requestError != nil:
		return decideOnRequestError(o)
	case errors.Is(o.startError, client.ErrSourceMissing):
		return decideOnDelivery(o)
	case errors.Is(o.startError, client.ErrPlanMissing) && o.plan.saved != nil:
		return decideOnPlanDelivery(o)
	case o.startError != nil:
		return decideOnStartError(o)
	}
	return decision{action: actionStart, wake: byObserver, after: followInterval}
}

// incomplete returns why an Update describes no operation although the API server admitted it; empty when it describes one.
func incomplete(update *autov1alpha1.Update) string {
	if _, known := operationKinds[update.Spec.Type]; !known {
		return fmt.Sprintf("spec.type %.64q is not one of preview, up, refresh, destroy; create another update with one of them", update.Spec.Type)
	}
	if update.Spec.StackName == "" {
		return "spec.stackName is empty; create another update with the name of a stack"
	}
	return ""
}

// decideOnRequestError waits for what may appear by itself, and ends an Update that needs an edit.
func decideOnRequestError(o *observation) decision {
	var missing *inputs.MissingError
	var denied *inputs.DeniedError
	var invalid *inputs.InvalidError
	switch {
	case errors.As(o.requestError, &missing):
		reason := pulumiv1.SecretNotFoundReason
		if missing.OfInput {
			reason = pulumiv1.InputNotFoundReason
		}
		// A watched Secret or ConfigMap wakes the Update when it appears. The controller has to look for the others.
		return retryAfter(reason, missing.Error(), retryDelay(o, reason, 2*time.Second, 30*time.Second))
	case errors.As(o.requestError, &denied):
		// The owner of the other Stack has to do something.
		const reason = pulumiv1.AccessDeniedReason
		return retryAfter(reason, denied.Error(), retryDelay(o, reason, 2*time.Second, 30*time.Second))
	case errors.As(o.requestError, &invalid):
		return finish(autov1alpha1.ConfigInvalidReason, invalid.Error())
	}
	return transient(o, o.requestError, transientInterval)
}

// decideOnStartError handles an agent that refuses to start the operation. For client.ErrSourceMissing see decideOnDelivery.
func decideOnStartError(o *observation) decision {
	switch err := o.startError; {
	case errors.Is(err, client.ErrBusy):
		return retryAfter(autov1alpha1.QueuedReason, err.Error(), busyInterval)
	case errors.Is(err, client.ErrInvalid), errors.Is(err, client.ErrTooLarge):
		return finish(autov1alpha1.ConfigInvalidReason, err.Error())
	case errors.Is(err, client.ErrPulumiUnsupported):
		// The status of the Workspace reports this too, or is about to. Another image makes the Workspace ready.
		d := artifactProblem(o, autov1alpha1.IncompatibleConfigurationReason, err)
		d.wake = byWorkspace
		return d
	}
	return transient(o, o.startError, transientInterval)
}

// retryDelay returns the time to the next attempt of an Update, from how long its condition has had the reason.
func retryDelay(o *observation, reason string, shortest, longest time.Duration) time.Duration {
	progressing := conditions.Get(o.update, autov1alpha1.UpdateProgressing)
	if progressing == nil || progressing.Reason != reason {
		return shortest
	}
	return backoff.Proportional(o.now.Sub(progressing.LastTransitionTime.Time), shortest, longest)
}
