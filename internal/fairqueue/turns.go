package fairqueue

import (
	"container/list"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Turns are slots for objects that do not wait for them in a goroutine: who asks is told its place in the queue, and is woken when it has a
// slot. Within a namespace the first comes first, and what is urgent before the rest; between namespaces
// it goes round.
type Turns struct {
	wake func(types.NamespacedName)

	mu     sync.Mutex
	shares *shares[*turn]
	turns  map[types.NamespacedName]*turn
}

// turn is that of one object, which either holds a slot or waits for it.
type turn struct {
	key    types.NamespacedName
	urgent bool
	// place is nil when it holds a slot.
	place *list.Element
}

// AllSlots lets one namespace have all slots that are free, where all namespaces have one owner; MayTake is for others.
func AllSlots(_, _ int) bool { return true }

// NewTurns returns so many slots, of which a namespace gets another one only as mayTake says. It calls wake for an object that got a slot
// which it had to wait for.
func NewTurns(slots int, mayTake func(held, free int) bool, wake func(types.NamespacedName)) *Turns {
	return &Turns{wake: wake, shares: newShares[*turn](slots, mayTake), turns: map[types.NamespacedName]*turn{}}
}

// Ask returns zero when the object has a slot, from now on until it leaves. Else it returns its place in the queue; 1 is the next one.
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

// Hold gives the object a slot, even when none is free: it works already.
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
	t.shares.hold(key.Namespace)
}

// Leave gives back the slot of the object, or its place. One that has neither may leave, too.
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
	t.grant(types.NamespacedName{})
}

// grant hands out what is free, and wakes who gets it, but for the one that asks. Callers hold the lock.
func (t *Turns) grant(asks types.NamespacedName) {
	for granted, ok := t.shares.take(); ok; granted, ok = t.shares.take() {
		granted.place = nil
		if granted.key != asks {
			t.wake(granted.key)
		}
	}
}
