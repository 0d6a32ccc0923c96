package podfaults_test

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

// How far an operation has come.
const (
	// idle: there is none.
	idle = "none"
	// queued: something else is wanted, and there is no Update for it, or one that has not begun.
	queued = "queued"
	// preparing: it has begun, and nothing has been done to a resource.
	preparing = "preparing"
	// running: something is being done to a resource.
	running = "running"
	// finishing: all of it is done, and that is not yet known.
	finishing = "finishing"
)

// chaseTime is how long a fault waits for the phase that it wants to hit.
const chaseTime = 8 * time.Second

// chase takes for its victim the first app, from a random one on, with an operation that is in the phase of the event. When there is
// none in time, it is a random one in whatever phase.
func (t *target) chase(ctx context.Context) {
	e, wanted := t.Event, t.Event.Phase
	_ = t.Hunt(ctx, chaseTime, func(a *campaign.App) (bool, error) {
		t.victim, e.Phase = a, t.phase(ctx, a)
		return e.Phase == wanted, nil
	}) // the function returns no error
	t.Missed, e.Victim = false, t.victim.Name
}

// phases is what is known of operations, from the journals.
type phases struct {
	mu    sync.Mutex
	begun map[types.UID]int // lines "start" in the journals when an Update was seen first
	lost  map[string]int    // by app, of what was begun before its Update, what never ended
}

// phase tells how far the app's operation has come.
func (s *scene) phase(ctx context.Context, a *campaign.App) string {
	updates := &autov1alpha1.UpdateList{}
	if err := s.Client.List(ctx, updates, client.InNamespace(a.Namespace)); err != nil {
		return idle
	}
	begun, ended := a.Counts()
	p := &s.phases
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, update := range updates.Items {
		if update.IsComplete() {
			continue
		}
		a.TakeChange(true)
		if update.Status.StartTime == nil {
			// What was killed before will never come to its end.
			p.begun[update.UID], p.lost[a.Name] = begun, begun-ended
			return queued
		}
		before, known := p.begun[update.UID]
		switch {
		case !known || begun == before:
			p.begun[update.UID] = begun
			return preparing
		case begun-ended > p.lost[a.Name]:
			return running
		}
		return finishing
	}
	if a.TakeChange(false) {
		return queued
	}
	return idle
}
