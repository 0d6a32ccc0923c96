package pod

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/backoff"
)

// tracker holds what the controller remembers about one Workspace. All of it can be lost: a new controller only waits a little longer.
type tracker struct {
	// hasPod is true if there was a pod when the Workspace was last observed. It is read without the lock.
	hasPod atomic.Bool
	// hadAgent is true if a pod with the agent of this controller was ready. It is read without the lock.
	hadAgent atomic.Bool

	mu sync.Mutex
	memory
}

type memory struct {
	// workspace is the UID of the Workspace.
	workspace types.UID
	// applied is what this controller wrote last.
	applied appliedVersion
	// missingSince is the time since which there is no pod. retries counts the attempts to get one, and retriedAt is the time of the last
	// attempt.
	missingSince time.Time
	retries      int
	retriedAt    time.Time
	// pod is the UID of the pod to which silence, announcedAt and keptAt refer.
	pod         types.UID
	silence     silence
	announcedAt time.Time
	// keptAt is when that pod could not be deleted although its agent is outdated; zero when that was not tried.
	keptAt time.Time
	// delivery is how the agent gets into the pod, if that is found out; empty until then. The cache may be behind what was written, so it does
	// not decide again.
	delivery AgentDelivery
	// volumeRefused is true when a pod was refused because of a volume.
	volumeRefused bool
}

// tracker returns the tracker of the Workspace, with its lock held.
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
	if t.workspace != workspace.UID {
		if t.workspace != "" {
			// The agent of an earlier Workspace of that name must not be reached through this one.
			r.connections.drop(key, "")
		}
		t.memory = memory{workspace: workspace.UID}
	}
	return t
}

// update records whether there is a pod, and completes the observation from memory.
func (t *tracker) update(o *observation) {
	t.hasPod.Store(o.pod != nil)
	if o.pod == nil {
		if t.missingSince.IsZero() || o.idle {
			t.missingSince = o.now
		}
		o.missingSince, o.retryCreationAt = t.missingSince, t.retryCreationAt()
		return
	}
	t.missingSince, t.retries, t.retriedAt = time.Time{}, 0, time.Time{}
	if t.pod != o.pod.UID {
		t.pod, t.silence, t.announcedAt, t.keptAt = o.pod.UID, silence{}, time.Time{}, time.Time{}
	}
	o.announcedAt, o.keptUntil = t.announcedAt, t.keptAt.Add(keptInterval)
}

// silence is for how long an agent has given no useful answer.
type silence struct {
	// askedAt is when it was asked last; zero if it answered then.
	askedAt time.Time
	// noAnswer is how long it did not answer at all, refusal how long it answered only that it does not let the controller in, or nothing useful.
	noAnswer, refusal time.Duration
}

// note records how the agent answered. Only the time since the question before counts, and little of it if that was long ago: nothing is known of
// an agent that was not asked.
func (s *silence) note(now time.Time, err error) {
	if err == nil {
		*s = silence{}
		return
	}
	since := time.Duration(0)
	if !s.askedAt.IsZero() {
		since = min(now.Sub(s.askedAt), maxAskInterval)
	}
	s.askedAt = now
	switch {
	case errors.Is(err, client.ErrUnasked):
	case client.Silent(err):
		s.noAnswer += since
	default:
		s.noAnswer, s.refusal = 0, s.refusal+since
	}
}

// retryCreationAt returns when the next attempt to get a pod may be made. The delay grows from 2 s to 30 s.
func (t *tracker) retryCreationAt() time.Time {
	last := t.retriedAt
	if last.IsZero() {
		last = t.missingSince
	}
	return last.Add(backoff.Exponential(2*time.Second, 2, int64(t.retries)+1, maxInterval))
}

// retried notes an attempt to get a pod and returns how long to wait for the next.
func (t *tracker) retried(now time.Time) time.Duration {
	t.retries, t.retriedAt = t.retries+1, now
	return t.retryCreationAt().Sub(now)
}

// announce records whether the status says that the pod is about to be replaced.
func (t *tracker) announce(now time.Time, announced bool) {
	switch {
	case !announced:
		t.announcedAt = time.Time{}
	case t.announcedAt.IsZero():
		t.announcedAt = now
	}
}
