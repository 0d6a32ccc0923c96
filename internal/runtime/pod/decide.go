package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

const (
	// silence is for how long an agent may not answer before its pod is replaced without its consent. When its key pair was
	// made anew, kubelet takes up to a minute and a half to give it to the agent, whose operation goes on meanwhile.
	silence = 2 * time.Minute
	// silentInterval is how often such an agent is asked.
	silentInterval = 5 * time.Second
	// busyInterval is how often an agent is asked that has an operation, when its pod has to go soon.
	busyInterval = 10 * time.Second
	// patientInterval is the same for a pod that may as well stay.
	patientInterval = time.Minute
	// announceTime is how long the status says that the pod is about to be replaced before that is done. An operation that
	// is started by somebody who has not seen it yet is noticed after that.
	announceTime = time.Second
	// signalTime is how long an agent without an operation may take to end after its pod was deleted, which it does at once. One that
	// still answers after it did not get the signal: one that comes while its container starts is lost, for a process with the
	// number 1 has none that end it by default.
	signalTime = 10 * time.Second
	// shortGrace is how many seconds are left to the pod of such an agent.
	shortGrace = 5
	// The time between two readings of what has no watch grows from the first to the second value.
	minInterval = time.Second
	maxInterval = 30 * time.Second
)

// action is what has to be done beside writing the status.
type action string

const (
	// actionNone leaves everything as it is.
	actionNone action = ""
	// actionRetryCreation has the StatefulSet controller try at once to create the pod.
	actionRetryCreation action = "retry creation"
	// actionAnnounce keeps new operations away, for the pod is about to be replaced.
	actionAnnounce action = "announce"
	// actionReplace deletes the pod, so that one of the current template takes its place.
	actionReplace action = "replace"
	// actionScaleDown has the StatefulSet controller delete the pod, and make no other.
	actionScaleDown action = "scale down"
	// actionShortenGrace shortens the time that a pod has to end.
	actionShortenGrace action = "shorten grace"
)

// decision is what was decided.
type decision struct {
	status runtime.Status
	action action
}

// decide is the whole policy of this runtime.
func decide(o *observation) decision {
	d := decideOnPod(o)
	switch {
	case d.status.RetryAfter != 0:
	case o.rejected != nil:
		d.status.RetryAfter = o.rejected.RetryAfter
	case o.renewing:
		d.status.RetryAfter = patientInterval
	}
	return d
}

func decideOnPod(o *observation) decision {
	switch {
	case o.rejected != nil && !o.podHasInputs():
		// A pod that is what the user asks for goes on although the objects were not accepted: the controller asks for something else
		// than its predecessor.
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

// decideWithoutPod says why there is no pod, and helps when its creation failed: the StatefulSet controller waits up to a
// quarter of an hour between two attempts.
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

// decideOnIdle has the pod of a Workspace go that had nothing to do for long, as soon as its agent agrees.
func decideOnIdle(o *observation) decision {
	idle := runtime.Status{
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

// decideOnRevision replaces a pod that the user wants otherwise as soon as no operation runs in it.
func decideOnRevision(o *observation) decision {
	status := runtime.Status{Reason: autov1alpha1.RollingUpdateReason, Message: "the pod is being replaced because the workspace changed"}
	switch {
	case !o.statefulSetIsApplied():
		// The watch on the StatefulSet follows.
		return decision{status: status}
	case !o.agentRuns():
		return decision{status: status, action: actionReplace}
	}
	return decideOnAnswer(o, status, status, busyInterval)
}

// decideOnAgent replaces a pod that works and has the agent of another controller, when it has nothing to do, a few at a
// time.
func decideOnAgent(o *observation, status runtime.Status) decision {
	switch {
	case !o.statefulSetIsApplied():
		return decision{status: status}
	case !o.agentRuns():
		status.RetryAfter = 0
		return decision{status: status, action: actionReplace}
	case !o.mayRoll:
		// Its turn is an event.
		return decision{status: status}
	}
	announced := runtime.Status{Reason: autov1alpha1.RollingUpdateReason, Message: "the pod is being replaced because the controller has another agent"}
	return decideOnAnswer(o, status, announced, patientInterval)
}

// decideOnAnswer replaces the pod when its agent agrees, or has not answered for long. Until then the status is the first
// one, and after it the second one.
func decideOnAnswer(o *observation, waiting, announced runtime.Status, interval time.Duration) decision {
	because := ""
	switch {
	case o.agent.err != nil && o.now.Sub(o.agent.silentSince) < silence:
		waiting.RetryAfter, because = silentInterval, "; its agent does not answer"
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

// decideOnEnd waits for the end of a pod that was deleted, and brings it about when the agent has nothing to do and got no signal.
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

// deletedAt is when the pod was deleted. Its deletion timestamp includes the grace period.
func (o *observation) deletedAt() time.Time {
	return o.pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(o.pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// needsAnswer reports whether the decision depends on what the agent answers.
func needsAnswer(o *observation) bool {
	switch {
	case !o.ownsRunningAgent():
		return false
	case o.idle:
		return !isScaledDown(o.statefulSet)
	case o.pod.DeletionTimestamp != nil:
		return !o.now.Before(o.deletedAt().Add(signalTime))
	}
	return o.statefulSetIsApplied() && (!o.podHasInputs() || o.agentIsOutdated() && o.mayRoll)
}

// needsEvents returns what events are needed about, empty when none are.
func needsEvents(o *observation) types.UID {
	switch {
	case o.statefulSet == nil:
		return ""
	case o.pod == nil:
		return o.statefulSet.UID
	case o.pod.DeletionTimestamp == nil && o.pod.Spec.NodeName != "" && o.now.Sub(o.pod.CreationTimestamp.Time) >= slowStart &&
		o.pod.Status.Phase == corev1.PodPending && containersWait(o.pod):
		return o.pod.UID
	}
	return ""
}
