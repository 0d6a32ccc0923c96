package fairqueue

import (
	"container/list"
	"context"
	"sync"
)

// Pool is a number of slots for goroutines.
type Pool struct {
	mu     sync.Mutex
	shares *shares[chan struct{}]
}

// NewPool returns a Pool with that number of slots.
func NewPool(slots int) *Pool {
	return &Pool{shares: newShares[chan struct{}](slots, MayTake)}
}

// Acquire waits for a slot for the namespace until ctx ends; its only error is that of ctx. The slot is held until release is called.
func (p *Pool) Acquire(ctx context.Context, namespace string) (release func(), err error) {
	granted := make(chan struct{})
	p.mu.Lock()
	place := p.shares.push(namespace, granted)
	p.grant()
	p.mu.Unlock()
	select {
	case <-granted:
		return sync.OnceFunc(func() { p.release(namespace) }), nil
	case <-ctx.Done():
		p.leave(namespace, place)
		return nil, ctx.Err()
	}
}

// leave gives up the place in the queue, or the slot if it was granted meanwhile.
func (p *Pool) leave(namespace string, place *list.Element) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-place.Value.(chan struct{}):
		p.shares.release(namespace)
		p.grant()
	default:
		p.shares.remove(namespace, place)
	}
}

func (p *Pool) release(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares.release(namespace)
	p.grant()
}

// grant hands out the free slots. Callers hold the lock.
func (p *Pool) grant() {
	for granted, ok := p.shares.take(); ok; granted, ok = p.shares.take() {
		close(granted)
	}
}
