package pod

import (
	"time"

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
	// drainTime is how long the status says that the pod is about to be replaced before that is done. An operation that
	// is started by somebody who has not seen it yet is noticed after that.
	drainTime = time.Second
	// heedTime is how long an agent without an operation may take to end after its pod was deleted, which it does at once. One that
	// still answers after it has not heard of it: a signal that comes while its container starts is lost, for a process with the
	// number 1 has none that end it by default.
	heedTime = 10 * time.Second
	// hurriedGrace is how many seconds are left to the pod of such an agent.
	hurriedGrace = 5
	// The time between two looks at what nothing tells about grows from the first to the second value.
	minInterval = time.Second
	maxInterval = 30 * time.Second
)

// decide is the whole policy of this runtime.
func decide(o *observation) decision {
	switch {
	case o.rejected != nil && !o.serves():
		return decision{status: *o.rejected}
	case o.pod == nil:
		return decideWithoutPod(o)
	case !o.owned():
		return decision{status: explainForeign(o)}
	case o.pod.DeletionTimestamp != nil:
		return decideOnEnd(o)
	case marksOf(o.pod.Annotations).revision != o.wanted.revision:
		return decideOnRevision(o)
	}
	status := explainPod(o)
	if marksOf(o.pod.Annotations) == o.wanted {
		return decision{status: status}
	}
	return decideOnAgent(o, status)
}

// serves tells whether the pod is what the user asks for although the objects were not accepted: the controller asks for
// something else than its predecessor. What runs goes on.
func (o *observation) serves() bool {
	return o.pod != nil && marksOf(o.pod.Annotations).revision == o.wanted.revision
}

// decideWithoutPod says why there is no pod, and helps when its creation failed: the StatefulSet controller waits up to a
// quarter of an hour between two attempts.
func decideWithoutPod(o *observation) decision {
	status, failed := explainMissing(o)
	if !failed {
		return decision{status: status}
	}
	if o.now.Before(o.nudgeAt) {
		status.RetryAfter = o.nudgeAt.Sub(o.now)
		return decision{status: status}
	}
	return decision{status: status, action: actionNudge}
}

// decideOnRevision replaces a pod that the user wants otherwise as soon as no operation runs in it.
func decideOnRevision(o *observation) decision {
	status := runtime.Status{Reason: autov1alpha1.RollingUpdateReason, Message: "the pod is being replaced because the workspace changed"}
	switch {
	case !o.applied():
		// The watch on the StatefulSet follows.
		return decision{status: status}
	case !agentRuns(o.pod):
		return decision{status: status, action: actionReplace}
	}
	return decideOnAnswer(o, status, status, busyInterval)
}

// decideOnAgent replaces a pod that works and has the agent of another controller, when it has nothing to do, a few at a
// time.
func decideOnAgent(o *observation, status runtime.Status) decision {
	switch {
	case !o.applied():
		return decision{status: status}
	case !agentRuns(o.pod):
		status.RetryAfter = 0
		return decision{status: status, action: actionReplace}
	case !o.mayRoll:
		// Its turn is an event.
		return decision{status: status}
	}
	draining := runtime.Status{Reason: autov1alpha1.RollingUpdateReason, Message: "the pod is being replaced because the controller has another agent"}
	return decideOnAnswer(o, status, draining, patientInterval)
}

// decideOnAnswer replaces the pod when its agent agrees, or has not answered for long. Until then the status is the first
// one, and after it the second one.
func decideOnAnswer(o *observation, waiting, draining runtime.Status, interval time.Duration) decision {
	switch {
	case o.agent.err != nil && o.now.Sub(o.agent.silentSince) < silence:
		waiting.RetryAfter = silentInterval
		if !waiting.Ready {
			waiting.Message += "; its agent does not answer"
		}
		return decision{status: waiting}
	case o.agent.err == nil && o.agent.busy:
		waiting.RetryAfter = interval
		if !waiting.Ready {
			waiting.Message += "; its operation goes on until it ends"
		}
		return decision{status: waiting}
	case o.drainingSince.IsZero() || o.now.Sub(o.drainingSince) < drainTime:
		draining.RetryAfter = drainTime
		return decision{status: draining, action: actionDrain}
	}
	return decision{status: draining, action: actionReplace}
}

// decideOnEnd waits for the end of a pod that was deleted, and brings it about when the agent has nothing to do and does not know.
func decideOnEnd(o *observation) decision {
	status := explainTerminating(o)
	switch heard := o.endsSince().Add(heedTime); {
	case !o.owned() || !agentRuns(o.pod) || ptr.Deref(o.pod.DeletionGracePeriodSeconds, 0) <= hurriedGrace || status.Failing:
		return decision{status: status}
	case o.now.Before(heard):
		status.RetryAfter = heard.Sub(o.now)
		return decision{status: status}
	case o.agent.err != nil || o.agent.busy:
		status.RetryAfter = min(status.RetryAfter, busyInterval)
		return decision{status: status}
	}
	return decision{status: status, action: actionHurry}
}

// endsSince is when the pod was deleted.
func (o *observation) endsSince() time.Time {
	return o.pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(o.pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// wantsAnswer tells whether the decision depends on what the agent says.
func wantsAnswer(o *observation) bool {
	switch {
	case o.pod == nil || !o.owned() || !agentRuns(o.pod):
		return false
	case o.pod.DeletionTimestamp != nil:
		return !o.now.Before(o.endsSince().Add(heedTime))
	case !o.applied():
		return false
	}
	return marksOf(o.pod.Annotations).revision != o.wanted.revision || outdated(o) && o.mayRoll
}

// outdated tells whether the pod is as the user wants it and has the agent of another controller.
func outdated(o *observation) bool {
	has := marksOf(o.pod.Annotations)
	return has.revision == o.wanted.revision && has.agent != o.wanted.agent
}

// growing is half of the time waited so far, within bounds: nothing has to be remembered for it.
func growing(waited time.Duration) time.Duration {
	return min(max(waited/2, minInterval), maxInterval)
}
