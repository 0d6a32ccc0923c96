package update

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// signal wakes an Update.
type signal struct {
	key types.NamespacedName
	// urgent is false for progress, which may be shown a little later.
	urgent bool
}

// signalEvent is a signal on its way to the controller.
type signalEvent = event.TypedGenericEvent[signal]

// jobs are the goroutines that work for Updates, at most one for each: it delivers the artifact, later it observes the
// operation. They only look and carry; whatever they find out, the reconciler finds out as well when it is woken. jobs is a
// manager.Runnable; the goroutines end with it.
type jobs struct {
	// ctx ends when the manager stops.
	ctx     context.Context
	cancel  context.CancelFunc
	signals chan signalEvent

	mu      sync.Mutex
	running map[types.NamespacedName]*job
	waiting sync.WaitGroup
}

// job is one goroutine.
type job struct {
	// id tells what it is for: the UID of the Update and the kind of work.
	id     string
	cancel context.CancelFunc
}

func newJobs() *jobs {
	ctx, cancel := context.WithCancel(context.Background())
	return &jobs{
		ctx:     ctx,
		cancel:  cancel,
		signals: make(chan signalEvent),
		running: map[types.NamespacedName]*job{},
	}
}

// Start waits for the end of ctx, and then for that of all goroutines.
func (j *jobs) Start(ctx context.Context) error {
	<-ctx.Done()
	j.mu.Lock()
	j.cancel()
	j.mu.Unlock()
	j.waiting.Wait()
	return nil
}

// ensure runs work for the Update, unless the same work is running. Other work for it is ended: an Update that was made
// again under its old name, or a delivery after the start. When work returns true the Update is woken; by then the work is
// not running any more, so that it can be ensured again.
func (j *jobs) ensure(key types.NamespacedName, id string, work func(ctx context.Context) (wake bool)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if current := j.running[key]; current != nil {
		if current.id == id {
			return
		}
		current.cancel()
	}
	if j.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(j.ctx)
	started := &job{id: id, cancel: cancel}
	j.running[key] = started
	j.waiting.Go(func() {
		defer cancel()
		wake := work(ctx)
		j.remove(key, started)
		if wake {
			j.wake(ctx, key, true)
		}
	})
}

func (j *jobs) remove(key types.NamespacedName, ended *job) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.running[key] == ended {
		delete(j.running, key)
	}
}

// stop ends the work for an Update that needs none any more.
func (j *jobs) stop(key types.NamespacedName) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if current := j.running[key]; current != nil {
		current.cancel()
		delete(j.running, key)
	}
}

// wake sends a signal; it waits until the controller takes it or ctx ends.
func (j *jobs) wake(ctx context.Context, key types.NamespacedName, urgent bool) {
	select {
	case j.signals <- signalEvent{Object: signal{key: key, urgent: urgent}}:
	case <-ctx.Done():
	}
}
