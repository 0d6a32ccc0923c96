package fairqueue

import (
	"container/list"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Turns are slots for objects that do not wait in a goroutine: Ask returns the place of the object in the queue, and the object is woken
// when it has a slot. Within a namespace, urgent objects come first, and otherwise objects are served in the order in which they came. The
// namespaces take turns.
type Turns struct {
	wake func(types.NamespacedName)

	mu     sync.Mutex
	shares *shares[*turn]
	turns  map[types.NamespacedName]*turn
}

// turn is an object that holds a slot or waits for one.
type turn struct {
	key    types.NamespacedName
	urgent bool
	// place is nil when it holds a slot.
	place *list.Element
	// extra is true if its slot is beyond the share of its namespace: others still have theirs.
	extra bool
}

// AllSlots lets one namespace take all free slots, for clusters where all namespaces have one owner. For other clusters use MayTake.
func AllSlots(_, _ int) bool { return true }

// NewTurns returns Turns with that number of slots. A namespace gets another slot only if mayTake allows it. When an object gets a slot
// after waiting, wake is called for it.
func NewTurns(slots int, mayTake func(held, free int) bool, wake func(types.NamespacedName)) *Turns {
	return &Turns{wake: wake, shares: newShares[*turn](slots, mayTake), turns: map[types.NamespacedName]*turn{}}
}

// Ask returns zero if the object has a slot, which it holds until Leave. Otherwise it returns the place of the object in the queue; 1 is
// the next one.
func (t *Turns) Ask(key types.NamespacedName, urgent bool) (place int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.turns[key]
	if own == nil {
		own = &turn{key: key, urgent: urgent}
		t.turns[key] = own
		own.place = t.shares.pushAfter(key.Namespace, own, func(other *turn) bool { return !urgent || other.urgent })
		t.grant(key)
	}
	if own.place == nil {
		return 0
	}
	return t.shares.before(key.Namespace, own.place) + 1
}

// Hold gives the object a slot even if none is free, because it is working already. Beyond the share of its namespace that slot is not taken from
// others: a tenant's agent can say that any number of objects works.
func (t *Turns) Hold(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.turns[key]
	switch {
	case own == nil:
		own = &turn{key: key}
		t.turns[key] = own
	case own.place == nil:
		return
	default:
		t.shares.remove(key.Namespace, own.place)
		own.place = nil
	}
	if own.extra = !t.shares.isFor(key.Namespace); own.extra {
		t.shares.free++
	}
	t.shares.hold(key.Namespace)
}

// Leave gives back the slot of the object, or its place in the queue. It does nothing if the object has neither.
func (t *Turns) Leave(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.turns[key]
	if own == nil {
		return
	}
	delete(t.turns, key)
	if own.place != nil {
		t.shares.remove(key.Namespace, own.place)
		return
	}
	t.shares.release(key.Namespace)
	if own.extra {
		t.shares.free--
	}
	t.grant(types.NamespacedName{})
}

// grant hands out the free slots, and wakes the objects that get them, except the object that asks. Callers hold the lock.
func (t *Turns) grant(asks types.NamespacedName) {
	for granted, ok := t.shares.take(); ok; granted, ok = t.shares.take() {
		granted.place = nil
		if granted.key != asks {
			t.wake(granted.key)
		}
	}
}
