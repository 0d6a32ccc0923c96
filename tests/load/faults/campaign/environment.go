// Package campaign plays runs in which Stacks change at random while faults happen. It judges from outside whether every intended change
// was made exactly once, and whether every status is true. The packages that use it define the faults and the system: package faults has
// workspaces that are processes, podfaults has pods on a node.
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

	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
)

const (
	// PollInterval is the time between two checks of a wait.
	PollInterval = 100 * time.Millisecond
	// Insistence is how long a request to the API server is repeated: longer than the longest outage of the API server.
	Insistence = 8 * time.Minute
)

// System is the part in which environments differ.
type System interface {
	// Unconverged returns an error if something else of the Stack is not yet in its expected final state. gone means that the Stack was
	// deleted and is gone.
	Unconverged(ctx context.Context, a *App, gone bool) error
	// LeftBehind returns an error if locks or processes were left behind that should not exist.
	LeftBehind(apps []*App) error
	// Works reports whether a pulumi process works for the Stack.
	Works(a *App) bool
	// Pulumi runs the CLI by hand, in a project of the app's name.
	Pulumi(ctx context.Context, a *App, args ...string) error
	// Prepare is called before each run, with the Stacks of the last one; some may be nil or deleted.
	Prepare(ctx context.Context, apps []*App) error
	// CheckInvariants returns an error if something was seen since the last call that must never happen.
	CheckInvariants() error
	// Explain describes what localsystem.Apps.Explain does not describe about a Stack.
	Explain(ctx context.Context, a *App) string
	// KeepLogs copies the logs to the directory that a developer asked for, if any.
	KeepLogs(occasion string)
}

// Environment is a running system in which runs are played.
type Environment struct {
	*localsystem.Apps
	System System
	Number int // from 1
	// Journals is the directory in which resources record what is done to them, and JournalsInside is the path of that directory for
	// programs.
	Journals, JournalsInside string
	// Work is how long a resource takes to be created or updated.
	Work time.Duration
	// Patience is how long nothing may change before a wait is given up. MaxConvergence bounds a wait during which something changes:
	// nothing takes that long unless it goes round in circles.
	Patience, MaxConvergence time.Duration

	watcher *watcher
	gate    *approver
	holds   holds
	train   *train // nil until an app joins

	mu        sync.Mutex
	abandoned []*App // of failed runs; what they leave behind does not count against later runs
}

// Start begins to check every status and to approve plans.
func (w *Environment) Start(ctx context.Context) {
	w.gate = newApprover()
	w.watcher = startWatcher(ctx, w.Client, w.gate)
	w.watcher.running.Go(func() { w.approve(ctx) })
}

// Stop waits for what Start began. The context of Start must have ended.
func (w *Environment) Stop() { w.watcher.running.Wait() }

// Problems returns how many statuses were checked so far, and the problems that no run has reported yet.
func (w *Environment) Problems() (checked int, err error) { return w.watcher.take() }

// Target is what a fault can hit.
type Target struct {
	Environment *Environment
	Apps        []*App
	Event       *Event
	Random      *rand.Rand
	// Missed is set by a fault that has nothing to hit. Such a fault does not count.
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

// Hunt calls the function for each app, beginning with a random one, again and again until it returns true or an error, or until the time
// is over. In the last case the fault has missed.
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

// holds has a lock for each thing that faults need for themselves.
type holds struct {
	mu   sync.Mutex
	held map[string]*sync.Mutex
}

// hold waits until no other fault holds any of the things, and returns a function that releases them.
func (h *holds) hold(what []string) (release func()) {
	var locks []*sync.Mutex
	for _, name := range slices.Sorted(slices.Values(what)) { // every caller locks in the same order
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

// abandon excludes the apps, and everything that they leave behind, from later checks.
func (w *Environment) abandon(apps []*App) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range apps {
		if a != nil {
			w.abandoned = append(w.abandoned, a)
		}
	}
	w.train = nil
}

// Abandoned returns the apps of failed runs. What they leave behind does not count.
func (w *Environment) Abandoned() []*App {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.abandoned)
}

// Retry repeats a request to the API server while the API server is unavailable. AlreadyExists and NotFound are not repeated: they may
// mean that an earlier attempt succeeded and its response was lost.
func (w *Environment) Retry(ctx context.Context, request func(context.Context) error) error {
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

func (w *Environment) get(ctx context.Context, key client.ObjectKey, object client.Object) error {
	return w.Retry(ctx, func(ctx context.Context) error { return w.Client.Get(ctx, key, object) })
}

func (w *Environment) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return w.Retry(ctx, func(ctx context.Context) error { return w.Client.List(ctx, list, options...) })
}

// Remove deletes an object that may be gone already.
func (w *Environment) Remove(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	return client.IgnoreNotFound(w.Retry(ctx, func(ctx context.Context) error { return w.Client.Delete(ctx, object, options...) }))
}

// Wait waits for the duration and returns true. It returns false when the context ends first.
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
