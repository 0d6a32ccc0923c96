// Package campaign plays runs in which Stacks change at random while faults happen, and judges from outside whether every intended
// change was made exactly once and whether all that the system says is true. What is injected, and into which system, is up to those
// who use it: package faults has workspaces that are processes, podfaults has pods on a node.
package campaign

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/stage"
)

const (
	// PollInterval is how often it is looked whether something has happened.
	PollInterval = 100 * time.Millisecond
	// Insistence is for how long a request to the API server is repeated: the longest time that this is away, and more.
	Insistence = 8 * time.Minute
)

// System is what worlds differ in.
type System interface {
	// Unconverged tells what else of a Stack is not yet as it has to be in the end; gone says that it was deleted and is gone.
	Unconverged(ctx context.Context, a *App, gone bool) error
	// LeftBehind tells what was left behind that should not be there: locks and processes.
	LeftBehind(apps []*App) error
	// Works reports whether a process of pulumi works for the Stack.
	Works(a *App) bool
	// Pulumi runs the CLI by hand, in a project of the app's name.
	Pulumi(ctx context.Context, a *App, args ...string) error
	// Prepare is called before each run, with the Stacks of the last one; some may be nil or deleted.
	Prepare(ctx context.Context, apps []*App) error
	// Judge tells what was seen since the last call that must never be.
	Judge() error
	// Explain tells what Apps.Explain does not about a Stack.
	Explain(ctx context.Context, a *App) string
	// KeepLogs copies the logs to where a developer finds them, if one asked for it.
	KeepLogs(occasion string)
}

// World is a running system in which runs are played.
type World struct {
	*stage.Apps
	System System
	Number int // from 1
	// Journals is the directory in which resources note what is done to them, and JournalsInside is where programs find it.
	Journals, JournalsInside string
	// Work is how long a resource takes to be created or updated.
	Work time.Duration
	// Patience is how long nothing may happen at all before a wait is given up, and MaxConvergence bounds it while something happens:
	// nothing takes so long unless it goes round in circles.
	Patience, MaxConvergence time.Duration

	watcher *watcher
	gate    *gate
	holds   holds

	mu        sync.Mutex
	abandoned []*App // whose run failed: what they leave behind says nothing about later runs
}

// Start begins to check every status, and to approve what needs an approval.
func (w *World) Start(ctx context.Context) {
	w.gate = newGate()
	w.watcher = startWatcher(ctx, w.Client, w.gate)
	w.watcher.running.Go(func() { w.approve(ctx) })
}

// Stop waits for the end of what Start began, whose context has ended.
func (w *World) Stop() { w.watcher.running.Wait() }

// Problems returns how many statuses were checked so far, and what was wrong with those that no run has told of.
func (w *World) Problems() (checked int, err error) { return w.watcher.take() }

// Target is what a fault may hit.
type Target struct {
	World  *World
	Apps   []*App
	Event  *Event
	Random *rand.Rand
	// Missed is set by faults that find nothing to hit. They do not count.
	Missed bool
}

// Any chooses one of the apps.
func (t *Target) Any() *App { return t.Apps[t.Random.IntN(len(t.Apps))] }

// Living chooses one of the apps that were not deleted, nil when there is none.
func (t *Target) Living() *App {
	left := slices.DeleteFunc(slices.Clone(t.Apps), (*App).IsDeleted)
	if len(left) == 0 {
		return nil
	}
	return left[t.Random.IntN(len(left))]
}

// Hunt calls the function for each app, from a random one on, again and again until it returns true or the time is over. A fault that
// finds nothing has missed.
func (t *Target) Hunt(ctx context.Context, within time.Duration, hits func(*App) (bool, error)) error {
	first := t.Random.IntN(len(t.Apps))
	for deadline := time.Now().Add(within); time.Now().Before(deadline); Wait(ctx, PollInterval/4) {
		for i := range t.Apps {
			if hit, err := hits(t.Apps[(first+i)%len(t.Apps)]); hit || err != nil {
				t.Missed = false
				return err
			}
		}
	}
	t.Missed = true
	return nil
}

// holds are what faults hold for themselves.
type holds struct {
	mu   sync.Mutex
	held map[string]*sync.Mutex
}

// hold waits until nobody else holds any of it, and returns what lets go.
func (h *holds) hold(what []string) (release func()) {
	var locks []*sync.Mutex
	for _, name := range slices.Sorted(slices.Values(what)) { // in the same order for everybody
		h.mu.Lock()
		if h.held == nil {
			h.held = map[string]*sync.Mutex{}
		}
		if h.held[name] == nil {
			h.held[name] = &sync.Mutex{}
		}
		lock := h.held[name]
		h.mu.Unlock()
		lock.Lock()
		locks = append(locks, lock)
	}
	return func() {
		for _, lock := range locks {
			lock.Unlock()
		}
	}
}

// abandon leaves apps alone from now on, with all that they leave behind.
func (w *World) abandon(apps []*App) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range apps {
		if a != nil {
			w.abandoned = append(w.abandoned, a)
		}
	}
}

// Abandoned are the apps of runs that failed. What they leave behind says nothing.
func (w *World) Abandoned() []*App {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.abandoned)
}

// Insist repeats a request to the API server while that is away. That something exists already, or not any more, is what a
// request is told whose first answer was lost.
func (w *World) Insist(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Insistence)
	defer cancel()
	for {
		attempt, end := context.WithTimeout(ctx, 40*time.Second)
		err := request(attempt)
		end()
		if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) ||
			apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return err
		}
		if !Wait(ctx, 5*PollInterval) {
			return err
		}
	}
}

func (w *World) get(ctx context.Context, key client.ObjectKey, object client.Object) error {
	return w.Insist(ctx, func(ctx context.Context) error { return w.Client.Get(ctx, key, object) })
}

func (w *World) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return w.Insist(ctx, func(ctx context.Context) error { return w.Client.List(ctx, list, options...) })
}

// Remove deletes an object that may be gone already.
func (w *World) Remove(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	return client.IgnoreNotFound(w.Insist(ctx, func(ctx context.Context) error { return w.Client.Delete(ctx, object, options...) }))
}

// Wait returns after the time, or with false when the context ends first.
func Wait(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
