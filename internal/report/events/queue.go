package events

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// notification is an event on its way to notification-controller.
type notification struct {
	namespace string // of the object that the event is about
	body      []byte // JSON
	expires   time.Time
}

// queue holds notifications up to a number of bytes. It returns the oldest of each namespace first, and the namespaces take turns, so that
// the events of one namespace do not wait for those of another. To make room, it drops the oldest of the namespace that has the most bytes,
// because the newest show the current state.
type queue struct {
	limit int // bytes of all bodies together

	mu       sync.Mutex
	backlogs []*backlog // of the namespaces that have notifications, in the order of their turns
	bytes    int
	added    chan struct{} // holds a token while pop has not noticed an addition yet
}

// backlog has the notifications of one namespace in the queue.
type backlog struct {
	namespace string
	items     []notification
	bytes     int
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, added: make(chan struct{}, 1)}
}

// push appends without ever waiting and returns how many notifications were dropped.
func (q *queue) push(item notification) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.IndexFunc(q.backlogs, func(b *backlog) bool { return b.namespace == item.namespace })
	if at < 0 {
		at = len(q.backlogs)
		q.backlogs = append(q.backlogs, &backlog{namespace: item.namespace})
	}
	b := q.backlogs[at]
	b.items = append(b.items, item)
	b.bytes += len(item.body)
	q.bytes += len(item.body)
	for q.bytes > q.limit {
		q.removeFirst(slices.MaxFunc(q.backlogs, func(a, b *backlog) int { return cmp.Compare(a.bytes, b.bytes) }))
		dropped++
	}
	select {
	case q.added <- struct{}{}:
	default:
	}
	return dropped
}

// pop removes and returns the next notification. If there is none, it waits for one until the context ends.
func (q *queue) pop(ctx context.Context) (notification, bool) {
	for {
		if item, ok := q.tryPop(); ok {
			return item, true
		}
		select {
		case <-ctx.Done():
			return q.tryPop()
		case <-q.added:
		}
	}
}

// tryPop is pop without waiting.
func (q *queue) tryPop() (notification, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.backlogs) == 0 {
		return notification{}, false
	}
	next := q.backlogs[0]
	q.backlogs = append(q.backlogs[1:], next)
	return q.removeFirst(next), true
}

func (q *queue) removeFirst(b *backlog) notification {
	item := b.items[0]
	b.items[0] = notification{} // release the body
	b.items = b.items[1:]
	b.bytes -= len(item.body)
	q.bytes -= len(item.body)
	if len(b.items) == 0 {
		q.backlogs = slices.DeleteFunc(q.backlogs, func(other *backlog) bool { return other == b })
	}
	return item
}
