package pod

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// tracker is what is remembered of one Workspace. All of it can be lost: a new controller only waits a little longer.
type tracker struct {
	mu sync.Mutex
	// uid is the Workspace it is about.
	uid types.UID
	// applied is what this controller wrote last.
	applied appliedVersion
	// missingSince is since when there is no pod; nudges and nudgedAt are the attempts to get one.
	missingSince time.Time
	nudges       int
	nudgedAt     time.Time
	// pod is what silentSince and drainingSince are about.
	pod                        types.UID
	silentSince, drainingSince time.Time
}

// tracker returns what is remembered of the Workspace, with its lock held.
func (r *Runtime) tracker(workspace *autov1alpha1.Workspace) *tracker {
	key := keyOf(workspace)
	r.mu.Lock()
	t := r.trackers[key]
	if t == nil {
		t = &tracker{}
		r.trackers[key] = t
	}
	r.mu.Unlock()
	t.mu.Lock()
	if t.uid != workspace.UID {
		if t.uid != "" {
			// The agent of an earlier Workspace of that name is not to be reached through this one.
			r.connections.drop(key, "")
		}
		t.reset(workspace.UID)
	}
	return t
}

// reset forgets everything.
func (t *tracker) reset(uid types.UID) {
	t.uid, t.applied, t.pod = uid, appliedVersion{}, ""
	t.missingSince, t.nudges, t.nudgedAt, t.silentSince, t.drainingSince = time.Time{}, 0, time.Time{}, time.Time{}, time.Time{}
}

// sawPod notes that the pod is there.
func (t *tracker) sawPod(pod types.UID) {
	t.missingSince, t.nudges, t.nudgedAt = time.Time{}, 0, time.Time{}
	if t.pod != pod {
		t.pod, t.silentSince, t.drainingSince = pod, time.Time{}, time.Time{}
	}
}

// missedPod notes that there is none, and returns since when.
func (t *tracker) missedPod(now time.Time) time.Time {
	if t.missingSince.IsZero() {
		t.missingSince = now
	}
	return t.missingSince
}

// nudgeAt is when the next attempt to get a pod may be made: after 2 s at first, 30 s in the end.
func (t *tracker) nudgeAt() time.Time {
	last := t.nudgedAt
	if last.IsZero() {
		last = t.missingSince
	}
	return last.Add(min(2*time.Second<<min(t.nudges, 10), maxInterval))
}

// nudged notes an attempt and returns how long to wait for the next.
func (t *tracker) nudged(now time.Time) time.Duration {
	t.nudges, t.nudgedAt = t.nudges+1, now
	return t.nudgeAt().Sub(now)
}

// answered notes whether the agent answered, and returns since when it has not.
func (t *tracker) answered(now time.Time, err error) time.Time {
	switch {
	case err == nil:
		t.silentSince = time.Time{}
	case t.silentSince.IsZero():
		t.silentSince = now
	}
	return t.silentSince
}

// drain notes whether the status says that the pod is about to be replaced.
func (t *tracker) drain(now time.Time, draining bool) {
	switch {
	case !draining:
		t.drainingSince = time.Time{}
	case t.drainingSince.IsZero():
		t.drainingSince = now
	}
}
