package pod

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxRolling is how many pods are replaced at the same time because the controller is another one. When their
	// successors do not become ready the others stay as they are.
	maxRolling = 5
	// rollingPatience is how long one of them may take; after that it must not hold up the others any longer.
	rollingPatience = 15 * time.Minute
	// rollingInterval is how often that is looked at.
	rollingInterval = 30 * time.Second
)

// rollout lets few pods be replaced at the same time. The others wait, without being looked at, until it is their turn.
type rollout struct {
	// wake has a workspace looked at.
	wake func(types.NamespacedName)

	mu      sync.Mutex
	rolling map[types.NamespacedName]time.Time
	waiting map[types.NamespacedName]struct{}
}

func newRollout(wake func(types.NamespacedName)) *rollout {
	return &rollout{wake: wake, rolling: map[types.NamespacedName]time.Time{}, waiting: map[types.NamespacedName]struct{}{}}
}

// begin tells whether the workspace's pod may be replaced now. If not, the workspace is woken when it may.
func (r *rollout) begin(key types.NamespacedName, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, found := r.rolling[key]; found {
		return true
	}
	if len(r.rolling) >= maxRolling {
		r.waiting[key] = struct{}{}
		return false
	}
	delete(r.waiting, key)
	r.rolling[key] = now
	return true
}

// end says that the workspace's pod is not being replaced, any more or after all, and gives the next ones their turn.
func (r *rollout) end(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rolling, key)
	delete(r.waiting, key)
	r.wakeNext()
}

// expire ends what takes too long.
func (r *rollout) expire(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, began := range r.rolling {
		if now.Sub(began) >= rollingPatience {
			delete(r.rolling, key)
		}
	}
	r.wakeNext()
}

// wakeNext wakes as many as there is room for. The lock is held.
func (r *rollout) wakeNext() {
	room := maxRolling - len(r.rolling)
	for key := range r.waiting {
		if room <= 0 {
			return
		}
		room--
		delete(r.waiting, key)
		r.wake(key)
	}
}

// run ends what takes too long until ctx ends.
func (r *rollout) run(ctx context.Context) {
	ticker := time.NewTicker(rollingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.expire(now)
		}
	}
}
