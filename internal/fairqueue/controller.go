package fairqueue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// wakeBurst is how many times an object can be reconciled without a wait in between; then there are wakeInterval between two times.
	// An update from its commit to its result takes about eight reconciles of a Stack, and as many of an Update; whoever pushes one commit
	// after another must not be slowed down.
	wakeBurst    = 100
	wakeInterval = 500 * time.Millisecond
)

// ControllerOptions sets the workers and the queue of a controller: so many objects of one namespace are reconciled at the same time, and
// twice as many in all. Whatever wakes an object, it is reconciled at most 100 times at once and then twice per second; wakes
// in between become one. The queue also takes the place of controller-runtime's priority queue, which can lock itself up when it is shut
// down: it hands an item, with its lock held, to a worker that has gone. The controller would not end, nor give its lease to the next one,
// before the graceful shutdown times out.
func ControllerOptions(perNamespace int, options controller.Options) controller.Options {
	slots := Slots(perNamespace)
	options.MaxConcurrentReconciles = slots
	options.NewQueue = func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{
			Name:  name,
			Queue: New(name, slots, func(request reconcile.Request) string { return request.Namespace }),
		})
		return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{
			Name:          name,
			DelayingQueue: newPaced(delaying),
		})
	}
	return options
}

// paced is a queue that hands out each item only so often. What is added too early waits, once for all that is added meanwhile, and is
// never lost.
type paced[T comparable] struct {
	workqueue.TypedDelayingInterface[T]

	mu sync.Mutex
	// rested is when an item has its whole burst again: one interval after another, for each time that it was handed out. Those for which it
	// is past are forgotten when there are twice as many as were left the last time.
	rested map[T]time.Time
	sweep  int
}

func newPaced[T comparable](queue workqueue.TypedDelayingInterface[T]) *paced[T] {
	return &paced[T]{TypedDelayingInterface: queue, rested: map[T]time.Time{}, sweep: minSweep}
}

// minSweep is how many items are remembered before the first are looked through.
const minSweep = 1024

// Add queues the item as soon as it may be handed out again.
func (p *paced[T]) Add(item T) {
	if wait := p.wait(item); wait > 0 {
		p.TypedDelayingInterface.AddAfter(item, wait)
		return
	}
	p.TypedDelayingInterface.Add(item)
}

// AddAfter queues the item after the time, and not before it may be handed out again.
func (p *paced[T]) AddAfter(item T, after time.Duration) {
	p.TypedDelayingInterface.AddAfter(item, max(after, p.wait(item)))
}

// Get hands out an item and counts it. What was added counts only here, because what is queued twice is handed out once.
func (p *paced[T]) Get() (item T, shutdown bool) {
	item, shutdown = p.TypedDelayingInterface.Get()
	if !shutdown {
		p.count(item)
	}
	return item, shutdown
}

func (p *paced[T]) wait(item T) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.rested[item].Add(-(wakeBurst - 1) * wakeInterval))
}

func (p *paced[T]) count(item T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	rested := p.rested[item]
	if rested.Before(now) {
		rested = now
	}
	p.rested[item] = rested.Add(wakeInterval)
	if len(p.rested) < p.sweep {
		return
	}
	for item, rested := range p.rested {
		if rested.Before(now) {
			delete(p.rested, item)
		}
	}
	p.sweep = max(2*len(p.rested), minSweep)
}
