package artifact

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/notify"
)

// reportPeriod is how long an error is kept for a waiter that makes no request.
const reportPeriod = 10 * time.Minute

// background does work for reconcilers, which must not wait. Work with the same key is done once, however many waiters it has. Each waiter
// is notified when the work has ended, and gets its error once. Workers are shared between the namespaces of the keys.
type background[K comparable, W any] struct {
	workers int
	queue   *fairqueue.Queue[K]
	notices *notify.Notifier

	mu sync.Mutex
	// pending has the work that is queued or done now.
	pending map[K]pendingWork[W]
	// failures has the errors that no request has returned yet. Each waiter has at most one, its last.
	failures map[types.NamespacedName]failure[K]
}

// pendingWork is work, and the waiters that are notified when it has ended.
type pendingWork[W any] struct {
	work    W
	waiters map[types.NamespacedName]struct{}
}

type failure[K comparable] struct {
	key K
	err error
	at  time.Time
}

func newBackground[K comparable, W any](perNamespace int, namespaceOf func(K) string) *background[K, W] {
	return &background[K, W]{
		workers:  fairqueue.Slots(perNamespace),
		queue:    fairqueue.New("", fairqueue.Slots(perNamespace), namespaceOf),
		notices:  notify.New(),
		pending:  map[K]pendingWork[W]{},
		failures: map[types.NamespacedName]failure[K]{},
	}
}

// Events returns a channel that receives the waiter of a request when the work that it waited for has ended. The waiter is an object with
// only a namespace and a name. The channel is never closed.
func (b *background[K, W]) Events() <-chan event.GenericEvent { return b.notices.Events() }

// request queues the work for the waiter. If the last work of the waiter had the same key and failed, request returns that error once
// instead. But if the same work is already pending again for another waiter, its new result counts.
func (b *background[K, W]) request(key K, work W, waiter types.NamespacedName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	failed, hasFailed := b.failures[waiter]
	delete(b.failures, waiter)
	if _, isPending := b.pending[key]; !isPending {
		if hasFailed && failed.key == key {
			return failed.err
		}
		b.pending[key] = pendingWork[W]{work, map[types.NamespacedName]struct{}{}}
		b.queue.Add(key)
	}
	b.pending[key].waiters[waiter] = struct{}{}
	return nil
}

// forget drops the waiter's error, which is no longer needed.
func (b *background[K, W]) forget(waiter types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, waiter)
}

// run does the requested work until ctx ends, which also ends the work that is running.
func (b *background[K, W]) run(ctx context.Context, do func(context.Context, K, W) error) {
	var running sync.WaitGroup
	for range b.workers {
		running.Go(func() {
			for {
				key, shutdown := b.queue.Get()
				if shutdown || ctx.Err() != nil {
					return
				}
				b.mu.Lock()
				work := b.pending[key].work
				b.mu.Unlock()
				b.finish(key, do(ctx, key, work))
				b.queue.Done(key)
			}
		})
	}
	running.Go(func() { b.notices.Deliver(ctx) })
	<-ctx.Done()
	b.queue.ShutDown()
	running.Wait()
}

// finish keeps an error for each waiter, and notifies all of them.
func (b *background[K, W]) finish(key K, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(b.failures, func(_ types.NamespacedName, failed failure[K]) bool { return now.Sub(failed.at) > reportPeriod })
	for waiter := range b.pending[key].waiters {
		if err != nil {
			b.failures[waiter] = failure[K]{key, err, now}
		}
		b.notices.Add(waiter)
	}
	delete(b.pending, key)
}
