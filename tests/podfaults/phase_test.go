package podfaults_test

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// phase is how far an operation has come.
type phase string

const (
	// idle: there is none.
	idle phase = "none"
	// queued: something else is wanted, and there is no Update for it, or one that has not begun.
	queued phase = "queued"
	// preparing: it has begun, and nothing has been done to a resource.
	preparing phase = "preparing"
	// running: something is being done to a resource.
	running phase = "running"
	// finishing: all of it is done, and that is not yet known.
	finishing phase = "finishing"
)

var phases = []phase{queued, preparing, running, finishing}

// chaseTime is how long a fault waits for the phase that it wants to hit.
const chaseTime = 8 * time.Second

// chase returns the first app, from a random one on, with an operation that is in the phase. When there is none in time, it is a
// random one in whatever phase.
func (t *target) chase(ctx context.Context, wanted phase) (*app, phase) {
	first := t.random.IntN(len(t.apps))
	for deadline := time.Now().Add(chaseTime); time.Now().Before(deadline); wait(ctx, pollInterval/4) {
		for i := range t.apps {
			if a := t.apps[(first+i)%len(t.apps)]; a.phase(ctx) == wanted {
				return a, wanted
			}
		}
	}
	a := t.apps[first]
	return a, a.phase(ctx)
}

// phase tells how far the app's operation has come.
func (a *app) phase(ctx context.Context) phase {
	updates := &autov1alpha1.UpdateList{}
	if err := a.scene.system.Client.List(ctx, updates, client.InNamespace(a.Namespace)); err != nil {
		return idle
	}
	begun, ended := a.counts()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, update := range updates.Items {
		if update.IsComplete() {
			continue
		}
		a.changed = false
		if update.Status.StartTime == nil {
			// What was killed before will never come to its end.
			a.begun[string(update.UID)] = begun
			a.lost = begun - ended
			return queued
		}
		before, known := a.begun[string(update.UID)]
		switch {
		case !known || begun == before:
			a.begun[string(update.UID)] = begun
			return preparing
		case begun-ended > a.lost:
			return running
		}
		return finishing
	}
	if a.changed {
		return queued
	}
	return idle
}
