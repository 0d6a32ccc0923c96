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

// queue holds notifications up to a number of bytes: the oldest of a namespace first, and by turns of the namespaces, so that the events
// of one do not wait for those of another one. It makes room by dropping the oldest of the namespace that has the most, because the
// newest say what state things are in now.
type queue struct {
	limit int // bytes of all bodies together

	mu       sync.Mutex
	backlogs []*backlog // of the namespaces that have any, the one whose turn it is first
	bytes    int
	added    chan struct{} // holds a token while an addition was not noticed yet
}

// backlog is what a namespace has in the queue.
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

// pop removes the next notification. While there is none it waits, until the context ends.
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
	b.items[0] = notification{} // its body is not kept
	b.items = b.items[1:]
	b.bytes -= len(item.body)
	q.bytes -= len(item.body)
	if len(b.items) == 0 {
		q.backlogs = slices.DeleteFunc(q.backlogs, func(other *backlog) bool { return other == b })
	}
	return item
}
