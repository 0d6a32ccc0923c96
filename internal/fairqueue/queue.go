package fairqueue

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// Queue is a work queue whose workers are shared between namespaces. It hands out no more items at a time than it has slots, however many
// workers ask. That an item is queued once, is worked on by one worker at a time, and is counted in the metrics, is the work of client-go's queue
// within.
type Queue[T comparable] struct {
	work *workqueue.Typed[T]

	mu sync.Mutex
	// changed is sent to when an item may have become one that can be handed out.
	changed sync.Cond
	items   *items[T]
}

// items is the order of the queue within. The lock of Queue guards it.
type items[T comparable] struct {
	*shares[T]
	namespaceOf func(T) string
}

var _ workqueue.TypedInterface[string] = &Queue[string]{}

// New returns a Queue with so many slots. The name is that in the metrics of work queues; without one there are none.
func New[T comparable](name string, slots int, namespaceOf func(T) string) *Queue[T] {
	q := &Queue[T]{items: &items[T]{newShares[T](slots, MayTake), namespaceOf}}
	q.changed.L = &q.mu
	q.work = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Name: name, Queue: q.items})
	return q
}

// Add queues the item, unless it is queued already. One that is worked on is queued when that is done.
func (q *Queue[T]) Add(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work.Add(item)
	q.changed.Signal()
}

// Get waits for an item that may be worked on. After the shutdown it returns those that are left, and then true.
func (q *Queue[T]) Get() (item T, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.items.Len() == 0 && !q.work.ShuttingDown() {
		q.changed.Wait()
	}
	return q.work.Get() // which does not wait now
}

// Done gives the slot of the item back. The slot may be what several namespaces have waited for.
func (q *Queue[T]) Done(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items.release(q.items.namespaceOf(item))
	q.work.Done(item)
	q.changed.Broadcast()
}

// Len is the number of items that wait.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.items.len
}

// ShutDown has Get return, and new items ignored.
func (q *Queue[T]) ShutDown() {
	q.work.ShutDown()
	q.wakeAll()
}

// ShutDownWithDrain is ShutDown, and waits for the workers.
func (q *Queue[T]) ShutDownWithDrain() {
	q.work.ShutDownWithDrain()
	q.wakeAll()
}

func (q *Queue[T]) wakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed.Broadcast()
}

// ShuttingDown reports whether the shutdown has begun.
func (q *Queue[T]) ShuttingDown() bool { return q.work.ShuttingDown() }

// Touch implements workqueue.Queue.
func (i *items[T]) Touch(T) {}

// Push implements workqueue.Queue.
func (i *items[T]) Push(item T) { i.push(i.namespaceOf(item), item) }

// Len implements workqueue.Queue: it is zero while no item may be taken.
func (i *items[T]) Len() int {
	if _, ok := i.next(); !ok {
		return 0
	}
	return i.len
}

// Pop implements workqueue.Queue.
func (i *items[T]) Pop() T {
	item, _ := i.take()
	return item
}
