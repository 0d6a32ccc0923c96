package events

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// notification is an event on its way to notification-controller.
type notification struct {
	body    []byte // JSON
	expires time.Time
}

// queue holds notifications, oldest first, up to a number of bytes. It makes room by dropping the oldest, because the
// newest tell the state that things are in now.
type queue struct {
	limit int // bytes of all bodies together

	mu    sync.Mutex
	items list.List
	bytes int
	added chan struct{} // holds a token while an addition was not noticed yet
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, added: make(chan struct{}, 1)}
}

// push appends without ever waiting and returns how many notifications were dropped.
func (q *queue) push(item notification) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items.PushBack(item)
	q.bytes += len(item.body)
	for q.bytes > q.limit && q.items.Len() > 0 {
		q.removeFirst()
		dropped++
	}
	select {
	case q.added <- struct{}{}:
	default:
	}
	return dropped
}

// pop removes the oldest notification. While there is none it waits, until the context ends.
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
	if q.items.Len() == 0 {
		return notification{}, false
	}
	return q.removeFirst(), true
}

func (q *queue) removeFirst() notification {
	item := q.items.Remove(q.items.Front()).(notification)
	q.bytes -= len(item.body)
	return item
}
