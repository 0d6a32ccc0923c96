package pod

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

const (
	// maxSilence is how long an agent may fail to answer before its pod is replaced without its consent. When its key pair was created anew,
	// the kubelet takes up to a minute and a half to give it to the agent, whose operation goes on meanwhile. So the wait protects an
	// operation of this controller. There is none in a pod that this controller did not create: see isOfAnother.
	maxSilence = 2 * time.Minute
	// maxRefusal is the same for an agent that answers, but does not let the controller in. It may be that its API server is away, or that the
	// rights of the controller are being changed; but one that never knew this controller has to go some day.
	maxRefusal = 15 * time.Minute
	// silentInterval is how often an agent that does not answer is asked again. Of the time between two questions, no more than maxAskInterval
	// counts as silence.
	silentInterval = 5 * time.Second
	maxAskInterval = 4 * silentInterval
	// busyInterval is how often an agent with an operation is asked again when its pod has to be removed soon.
	busyInterval = 10 * time.Second
	// outdatedAgentInterval is the same for a pod that may as well stay.
	outdatedAgentInterval = time.Minute
	// keptInterval is how long to wait before a pod that works, but has an outdated agent, is replaced after it could not be deleted. Each attempt
	// makes the Workspace not ready for announceTime.
	keptInterval = 10 * time.Minute
	// announceTime is how long the status announces that the pod is about to be replaced before the pod is replaced. After that time, the
	// agent is asked once more, in case a client that did not see the status in time has started an operation.
	announceTime = time.Second
	// signalTime is how long an agent without an operation may take to end after its pod was deleted; it ends at once when it gets the signal.
	// If it still answers after this time, it did not get the signal: a signal that comes while the container starts is lost, because no
	// signal ends process number 1 by default.
	signalTime = 10 * time.Second
	// shortGrace is how many seconds are left to the pod of such an agent.
	shortGrace = 5
	// The time between two reads of something that has no watch grows from minInterval to maxInterval.
	minInterval = time.Second
	maxInterval = 30 * time.Second
)

// action is what has to be done besides writing the status.
type action string

const (
	// actionNone leaves everything as it is.
	actionNone action = ""
	// actionQueue asks for a place among the few pods that are replaced at the same time. Then decide is called again.
	actionQueue action = "queue"
	// actionRetryCreation makes the StatefulSet controller try at once to create the pod.
	actionRetryCreation action = "retry creation"
	// actionAnnounce only shows in the status that the pod is about to be replaced, so that no new operation starts.
	actionAnnounce action = "announce"
	// actionReplace deletes the pod, so that the StatefulSet controller creates one from the current template.
	actionReplace action = "replace"
	// actionScaleDown makes the StatefulSet controller delete the pod and create no other.
	actionScaleDown action = "scale down"
	// actionShortenGrace shortens the time that a pod which was deleted has to end.
	actionShortenGrace action = "shorten grace"
)

// decision is what decide returns.
type decision struct {
	status agentruntime.Status
	action action
}

// decide chooses the status of the agent, and what to do about its pod. The rest of the policy of this runtime is where the objects are
// read or written:
//
//   - whether an object is applied again, for example a StatefulSet that somebody edited: Runtime.apply and tracker.unchanged in act.go
//   - whether the Secret is created, and whether the StatefulSet of an idle Workspace is applied without replicas: Runtime.applyObjects and
//     Runtime.keepScaledDown in act.go
//   - whether an existing object may be used or taken over: checkOwner in objects.go
//   - which errors become a status, so that Ensure does not return them: refusalStatus in objects.go
//   - what the status is when the API server did not permit the action: Runtime.withoutAction in act.go
//   - when the creation of a pod is tried again: tracker.retryCreationAt in tracker.go
//   - how many pods are replaced at the same time for another agent: rollout in rollout.go
//   - whether an agent is busy, or has stopped answering: Runtime.askAgent in observe.go, silence.note in tracker.go
//   - whether an agent is found before the kubelet reports that it runs: Runtime.foundAgent in connect.go
func decide(o *observation) decision {
	d := decideOnPod(o)
	switch {
	case d.status.RetryAfter != 0:
	case o.rejected != nil:
		d.status.RetryAfter = o.rejected.RetryAfter
	case o.renewing:
		d.status.RetryAfter = outdatedAgentInterval
	}
	return d
}

func decideOnPod(o *observation) decision {
	switch {
	case o.rejected != nil && (!o.podHasInputs() || o.statefulSet == nil):
		// A pod that has the user's inputs stays although the API server did not accept the objects: this controller wants other objects than its
		// predecessor did. Without its StatefulSet, it is nobody's.
		return decision{status: *o.rejected}
	case o.idle && o.statefulSet != nil:
		return decideOnIdle(o)
	case o.pod == nil:
		return decideWithoutPod(o)
	case !o.owned():
		return decision{status: explainUnownedPod(o)}
	case o.pod.DeletionTimestamp != nil:
		return decideOnEnd(o)
	case !o.podHasInputs():
		return decideOnRevision(o)
	}
	status := explainPod(o)
	if !o.agentIsOutdated() {
		return decision{status: status}
	}
	return decideOnAgent(o, status)
}

// decideWithoutPod explains why there is no pod. If its creation failed, it chooses another attempt: the StatefulSet controller waits up to
// a quarter of an hour between two attempts.
func decideWithoutPod(o *observation) decision {
	status := explainMissing(o)
	switch {
	case !status.Failing:
		return decision{status: status}
	case o.now.Before(o.retryCreationAt):
		status.RetryAfter = o.retryCreationAt.Sub(o.now)
		return decision{status: status}
	}
	return decision{status: status, action: actionRetryCreation}
}

// decideOnIdle removes the pod of a Workspace that has had nothing to do for its idle timeout, as soon as the agent agrees.
func decideOnIdle(o *observation) decision {
	idle := agentruntime.Status{
		Ready: true, Resting: true, Reason: autov1alpha1.IdleReason, Message: "the workspace is idle and has no pod; the next update starts one",
	}
	switch {
	case isScaledDown(o.statefulSet):
		return decision{status: idle}
	case !o.ownsRunningAgent():
		return decision{status: idle, action: actionScaleDown}
	}
	d := decideOnAnswer(o, explainPod(o), idle, busyInterval)
	if d.action == actionReplace {
		d.action = actionScaleDown
	}
	return d
}

// decideOnRevision replaces a pod whose inputs the user has changed, as soon as no operation runs in it.
func decideOnRevision(o *observation) decision {
	status := agentruntime.Status{Reason: autov1alpha1.RollingUpdateReason, Message: "the pod is being replaced because the workspace changed"}
	switch {
	case !o.statefulSetIsApplied():
		// The watch on the StatefulSet brings the Workspace back.
		return decision{status: status}
	case o.restartsFor() > 0:
		status.RetryAfter = o.restartsFor()
		return decision{status: status}
	case !o.agentRuns():
		return decision{status: status, action: actionReplace}
	}
	return decideOnAnswer(o, status, status, busyInterval)
}

// decideOnAgent replaces a pod that works, but has the agent of an earlier version or setting of the controller, or an earlier key pair. It
// does so when the agent has nothing to do, and for a few pods at a time.
func decideOnAgent(o *observation, status agentruntime.Status) decision {
	switch {
	case !o.statefulSetIsApplied():
		return decision{status: status}
	case o.agentRuns() && o.now.Before(o.keptUntil):
		status.RetryAfter = o.keptUntil.Sub(o.now)
		return decision{status: status}
	case o.restartsFor() > 0:
		status.RetryAfter = o.restartsFor()
		return decision{status: status}
	case !o.rollAsked:
		return decision{status: status, action: actionQueue}
	case !o.agentRuns():
		status.RetryAfter = 0
		return decision{status: status, action: actionReplace}
	case !o.mayRoll:
		// An event follows when it is the turn of this pod.
		return decision{status: status}
	}
	announced := agentruntime.Status{Reason: autov1alpha1.RollingUpdateReason, Message: "the pod is being replaced because the controller has another agent, or another key pair for it"}
	return decideOnAnswer(o, status, announced, outdatedAgentInterval)
}

// restartsFor returns for how long the agent may still be expected to run again, after its container ended a moment ago or its node restarted:
// it then has the results of its operations, of which some may not be recorded. A container that crashes again and again is not expected back.
func (o *observation) restartsFor() time.Duration {
	container := containerOf(o.pod, autov1alpha1.PulumiContainerName)
	over := o.pod.Status.Phase == corev1.PodFailed || o.pod.Status.Phase == corev1.PodSucceeded
	if container == nil || over || o.agentRuns() || o.isOfAnother() {
		return 0
	}
	if waiting := container.State.Waiting; waiting != nil && waiting.Reason == "CrashLoopBackOff" {
		return 0
	}
	ended := cmp.Or(container.State.Terminated, container.LastTerminationState.Terminated)
	if ended == nil || ended.StartedAt.Unix() <= 0 {
		return 0
	}
	return max(0, maxSilence-o.now.Sub(ended.FinishedAt.Time))
}

// decideOnAnswer replaces the pod when its agent agrees, or has given no useful answer for long. Until then the status is waiting, and from then on
// it is announced.
func decideOnAnswer(o *observation, waiting, announced agentruntime.Status, interval time.Duration) decision {
	because := ""
	switch {
	case o.agent.unasked:
		waiting.RetryAfter, waiting.Failing = silentInterval, !waiting.Ready
		because = "; the controller cannot ask its agent whether an operation runs: " + quote(o.agent.err.Error())
	case o.agent.err != nil && o.agent.silence.noAnswer < maxSilence && o.agent.silence.refusal < maxRefusal:
		waiting.RetryAfter, because = silentInterval, "; its agent does not say whether an operation runs"
	case o.agent.err == nil && o.agent.busy:
		waiting.RetryAfter, because = interval, "; its operation goes on until it ends"
	case o.announcedAt.IsZero() || o.now.Sub(o.announcedAt) < announceTime:
		announced.RetryAfter = announceTime
		return decision{status: announced, action: actionAnnounce}
	default:
		return decision{status: announced, action: actionReplace}
	}
	if !waiting.Ready {
		waiting.Message += because
	}
	return decision{status: waiting}
}

// decideOnEnd waits for the end of a pod that was deleted. It shortens the grace period if the agent has nothing to do and did not get the
// signal.
func decideOnEnd(o *observation) decision {
	status := explainTerminating(o)
	switch expected := o.deletedAt().Add(signalTime); {
	case !o.agentRuns() || ptr.Deref(o.pod.DeletionGracePeriodSeconds, 0) <= shortGrace || status.Failing:
		return decision{status: status}
	case o.now.Before(expected):
		status.RetryAfter = expected.Sub(o.now)
		return decision{status: status}
	case o.agent.err != nil || o.agent.busy:
		status.RetryAfter = min(status.RetryAfter, busyInterval)
		return decision{status: status}
	}
	return decision{status: status, action: actionShortenGrace}
}

// deletedAt returns when the pod was deleted. Its deletion timestamp includes the grace period.
func (o *observation) deletedAt() time.Time {
	return o.pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(o.pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// needsAnswer reports whether the decision depends on the agent's answer.
func needsAnswer(o *observation) bool {
	switch {
	case !o.ownsRunningAgent():
		return false
	case o.pod.DeletionTimestamp != nil && !o.idle:
		return !o.now.Before(o.deletedAt().Add(signalTime)) && !explainTerminating(o).Failing
	case o.isOfAnother():
		return false // nobody in it can answer
	case o.idle:
		return !isScaledDown(o.statefulSet)
	}
	return o.statefulSetIsApplied() && (!o.podHasInputs() || o.agentIsOutdated() && o.mayRoll)
}

// needsEvents returns the UID of the object whose events the decision needs; empty if it needs none.
func needsEvents(o *observation) types.UID {
	switch {
	case o.statefulSet == nil || o.pod == nil && o.idle:
		return ""
	case o.pod == nil:
		return o.statefulSet.UID
	case o.pod.DeletionTimestamp == nil && o.pod.Spec.NodeName != "" && o.now.Sub(o.pod.CreationTimestamp.Time) >= slowStart &&
		o.pod.Status.Phase == corev1.PodPending && containersWait(o.pod):
		return o.pod.UID
	}
	return ""
}
