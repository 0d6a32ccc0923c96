// Package fairqueue shares slots, such as workers, downloads or deliveries, between namespaces. Within a namespace, items are served in the
// order in which they came; the namespaces take turns. A namespace gets another slot only while it holds fewer slots than are free. So the
// first namespace can hold half of the slots, the second half of what the first leaves, and so on. However many items of one namespace wait
// or hang, and for however long, some slots are left for others: it takes five namespaces with hanging items to fill sixteen slots, and
// four to fill eight. AllSlots lifts this where all namespaces have one owner.
package fairqueue

import "container/list"

// Slots returns how many slots are needed in all so that one namespace can hold perNamespace of them.
func Slots(perNamespace int) int { return 2 * perNamespace }

// MayTake reports whether a namespace that holds that many slots may take another one of the free slots.
func MayTake(held, free int) bool { return held < free }

// shares has the items that wait for a slot, and the number of slots that each namespace holds. It is not safe for concurrent use. The time
// of an operation depends at most on the number of slots, not on the number of items or namespaces, except for pushAfter and before.
type shares[T any] struct {
	free int
	// mayTake is MayTake or another rule with the same parameters.
	mayTake func(held, free int) bool
	held    map[string]int
	// waiting has the items of each namespace that has any, the oldest first; turns has these namespaces, the next one first.
	waiting map[string]*queued
	turns   list.List
	len     int
}

// queued are the items of a namespace.
type queued struct {
	items list.List
	turn  *list.Element
}

func newShares[T any](slots int, mayTake func(held, free int) bool) *shares[T] {
	return &shares[T]{free: max(slots, 1), mayTake: mayTake, held: map[string]int{}, waiting: map[string]*queued{}}
}

// push appends the item to those of its namespace. The result is for remove.
func (s *shares[T]) push(namespace string, item T) *list.Element {
	return s.pushAfter(namespace, item, func(T) bool { return true })
}

// pushAfter inserts the item after the last item of its namespace for which before returns true.
func (s *shares[T]) pushAfter(namespace string, item T, before func(T) bool) *list.Element {
	q := s.waiting[namespace]
	if q == nil {
		q = &queued{turn: s.turns.PushBack(namespace)}
		s.waiting[namespace] = q
	}
	s.len++
	for other := q.items.Back(); other != nil; other = other.Prev() {
		if before(other.Value.(T)) {
			return q.items.InsertAfter(item, other)
		}
	}
	return q.items.PushFront(item)
}

// before returns how many items get a slot before this item, if no other item is pushed. Its time depends on the number of namespaces, and
// on the number of items of this namespace.
func (s *shares[T]) before(namespace string, element *list.Element) int {
	own := 0
	for other := element.Prev(); other != nil; other = other.Prev() {
		own++
	}
	count, earlier := own, 1
	for turn := s.turns.Front(); turn != nil; turn = turn.Next() {
		if turn.Value.(string) == namespace {
			earlier = 0
			continue
		}
		count += min(s.waiting[turn.Value.(string)].items.Len(), own+earlier)
	}
	return count
}

// remove takes out an item that was not taken yet.
func (s *shares[T]) remove(namespace string, element *list.Element) {
	q := s.waiting[namespace]
	q.items.Remove(element)
	s.len--
	if q.items.Len() == 0 {
		s.turns.Remove(q.turn)
		delete(s.waiting, namespace)
	}
}

// next returns the namespace whose turn it is. It passes over only namespaces that hold a slot, so only a few.
func (s *shares[T]) next() (namespace string, ok bool) {
	if s.free <= 0 {
		return "", false
	}
	for turn := s.turns.Front(); turn != nil; turn = turn.Next() {
		if namespace := turn.Value.(string); s.isFor(namespace) {
			return namespace, true
		}
	}
	return "", false
}

// isFor reports whether the namespace may take another slot.
func (s *shares[T]) isFor(namespace string) bool { return s.mayTake(s.held[namespace], s.free) }

// take gives a slot to the next item and returns it; ok is false if no item may have a slot.
func (s *shares[T]) take() (item T, ok bool) {
	namespace, ok := s.next()
	if !ok {
		return item, false
	}
	q := s.waiting[namespace]
	s.turns.MoveToBack(q.turn)
	element := q.items.Front()
	s.remove(namespace, element)
	s.hold(namespace)
	return element.Value.(T), true
}

// hold gives a slot to the namespace.
func (s *shares[T]) hold(namespace string) {
	s.free--
	s.held[namespace]++
}

// release gives a slot of the namespace back.
func (s *shares[T]) release(namespace string) {
	s.free++
	if s.held[namespace]--; s.held[namespace] == 0 {
		delete(s.held, namespace)
	}
}
