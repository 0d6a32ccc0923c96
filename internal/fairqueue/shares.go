// Package fairqueue shares what is scarce between namespaces: workers, downloads, deliveries. Within a namespace the first comes first;
// between namespaces it goes round. A namespace gets another slot only while it holds fewer than are free: alone it reaches half of
// them, a second one half of what the first leaves, and so on. What one namespace has waiting or hanging, however much and however
// long, therefore never takes the slot of another one: sixteen slots are full when five namespaces hang, and eight when four do.
package fairqueue

import "container/list"

// Slots is how many slots there have to be for one namespace to reach so many.
func Slots(perNamespace int) int { return 2 * perNamespace }

// MayTake reports whether a namespace that holds so many slots may have another one of those that are free.
func MayTake(held, free int) bool { return held < free }

// shares are the items that wait for a slot, and who holds the slots. It is not safe for concurrent use. All its operations take a time
// that depends on the number of slots at most, not on that of items or namespaces.
type shares[T any] struct {
	free int
	// mayTake reports whether a namespace that holds so many slots may have another one of those that are free.
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

// push appends the item to those of its namespace. What it returns is for remove.
func (s *shares[T]) push(namespace string, item T) *list.Element {
	return s.pushAfter(namespace, item, func(T) bool { return true })
}

// pushAfter puts the item behind the last one of its namespace that comes before it.
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

// before returns how many items get a slot before the one in its namespace, if nobody else comes. It takes a time that depends on the number
// of namespaces, and of items of this one.
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

// next returns the namespace whose turn it is. Only a namespace that holds a slot may be passed over, so that few are.
func (s *shares[T]) next() (namespace string, ok bool) {
	if s.free <= 0 {
		return "", false
	}
	for turn := s.turns.Front(); turn != nil; turn = turn.Next() {
		if namespace := turn.Value.(string); s.mayTake(s.held[namespace], s.free) {
			return namespace, true
		}
	}
	return "", false
}

// take hands a slot to the next item; false when no item may have one.
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
