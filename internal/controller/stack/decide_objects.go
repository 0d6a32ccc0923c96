package stack

import (
	"cmp"
	"time"

	"github.com/stack-controller/stack-controller/internal/backoff"
)

// shortestPoll and longestPoll are the first and the longest time between two requests for an object that cannot be watched. The time grows
// with that for which the Stack has waited.
const shortestPoll, longestPoll = 5 * time.Second, 30 * time.Second

// needsObjects reports whether the objects of other kinds that the Stack depends on have to be read.
func needsObjects(o observation) bool {
	return !o.objects.read && len(objectsOf(o.stack)) > 0
}

// blockedByObject waits for the watch on the object, or for the time after which it is read again.
func blockedByObject(o observation, problem *objectProblem) *decision {
	d := &decision{action: actionWait, wake: byObjects, reason: problem.reason, message: problem.message, after: o.waitInterval}
	switch problem.found {
	case byPolling:
		d.wake, d.after = byTime, backoff.Proportional(shownFor(o, problem.reason), shortestPoll, longestPoll)
	case byAskingAgain:
		d.wake = byTime
	}
	d.after = cmp.Or(problem.after, d.after)
	return d
}

// pollRarely returns the decision with the longest time between two requests if the Stack waits quietly, as before a resync: its status does
// not say since when.
func pollRarely(d decision) decision {
	if d.quiet && d.wake == byTime && d.after >= shortestPoll {
		d.after = max(d.after, longestPoll)
	}
	return d
}
