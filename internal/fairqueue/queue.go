package fairqueue

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// Queue is a work queue whose workers are shared between namespaces. It hands out at most as many items at the same time as it has slots,
// however many workers call Get. The queue of client-go that it contains ensures that an item is queued once, is processed by one worker at
// a time, and is counted in the metrics.
type Queue[T comparable] struct {
	work *workqueue.Typed[T]

	mu sync.Mutex
	// changed is signalled when another item may be ready to be handed out.
	changed sync.Cond
	items   *items[T]
}

// items keeps the order of the items for the queue of client-go. It is guarded by the lock of Queue.
type items[T comparable] struct {
	*shares[T]
	namespaceOf func(T) string
}

var _ workqueue.TypedInterface[string] = &Queue[string]{}

// New returns a Queue with that number of slots. The name is used in the metrics of work queues; without a name there are none.
func New[T comparable](name string, slots int, namespaceOf func(T) string) *Queue[T] {
	q := &Queue[T]{items: &items[T]{newShares[T](slots, MayTake), namespaceOf}}
	q.changed.L = &q.mu
	q.work = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Name: name, Queue: q.items})
	return q
}

// Add queues the item, unless it is queued already. An item that is being processed is queued when Done is called for it.
func (q *Queue[T]) Add(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work.Add(item)
	q.changed.Signal()
}

// Get waits for an item that may be processed. After the shutdown it returns the remaining items, and then shutdown is true.
func (q *Queue[T]) Get() (item T, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.items.Len() == 0 && !q.work.ShuttingDown() {
		q.changed.Wait()
	}
	return q.work.Get() // which does not wait now
}

// Done gives the slot of the item back. It wakes all workers, because items of several namespaces may be ready now.
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

// ShutDown makes the queue ignore new items, and makes Get return.
func (q *Queue[T]) ShutDown() {
	q.work.ShutDown()
	q.wakeAll()
}

// ShutDownWithDrain is like ShutDown, but also waits for the items that are being processed.
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
