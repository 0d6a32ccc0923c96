package artifact

import (
	"cmp"
	"container/list"
	"errors"
	"maps"
	"os"
	"time"
)

// unusedAfter is when content that nobody used is given up before all other, whoever has it.
const unusedAfter = 24 * time.Hour

// share is what a namespace takes of the store. What several namespaces have counts for each of them.
type share struct {
	// recent orders the entries, most recently used first.
	recent *list.List
	cost   int64
}

// cost is the size of the entry and what it takes beside that, without its owners.
func (s *Store) cost(e *entry) int64 { return e.size + s.share() }

// share is what an entry of a full store has of it, on average.
func (s *Store) share() int64 { return s.options.MaxStoreSize / int64(s.options.MaxStored) }

// count adds the entry to what the namespace takes. Callers hold the lock.
func (s *Store) count(e *entry, namespace string) {
	if e.shared[namespace] != nil {
		return
	}
	taken := s.shares[namespace]
	if taken == nil {
		taken = &share{recent: list.New()}
		s.shares[namespace] = taken
	}
	e.shared[namespace] = taken.recent.PushFront(e)
	taken.cost += s.cost(e)
}

// countOwner adds the file of an owner to what its namespace takes, and the entry unless it is counted already. Callers hold the lock.
func (s *Store) countOwner(e *entry, namespace string) {
	s.count(e, namespace)
	s.shares[namespace].cost += s.share() / ownersPerEntry
	s.owners++
}

// discountOwner is the reverse of countOwner for the file. Callers hold the lock.
func (s *Store) discountOwner(namespace string) {
	s.shares[namespace].cost -= s.share() / ownersPerEntry
	s.owners--
}

// discount is the reverse of count. Callers hold the lock.
func (s *Store) discount(e *entry, namespace string) {
	taken := s.shares[namespace]
	taken.recent.Remove(e.shared[namespace])
	delete(e.shared, namespace)
	if taken.cost -= s.cost(e); taken.recent.Len() == 0 {
		delete(s.shares, namespace)
	}
}

// evict removes content that is not open until there is room for another artifact of that size, or for none when it is 0: first what nobody
// used for a day, then what the namespace that takes most used least recently. Callers hold the lock.
func (s *Store) evict(room int64) {
	isFull := func() bool {
		return s.size+room > s.options.MaxStoreSize || int64(len(s.entries))+min(room, 1) > int64(s.options.MaxStored) ||
			s.owners > ownersPerEntry*s.options.MaxStored
	}
	for isFull() {
		if err := s.evictOne(); err != nil {
			if !errors.Is(err, errAllOpen) {
				s.options.Log.Error(err, "cannot evict an artifact")
			}
			return
		}
	}
}

var errAllOpen = errors.New("all artifacts are open")

func (s *Store) evictOne() error {
	if unused := leastRecent(s.recent); unused != nil && time.Since(unused.last) > unusedAfter {
		return s.remove(unused)
	}
	var last *entry
	var from string
	for namespace, taken := range s.shares {
		if last == nil || cmp.Or(cmp.Compare(taken.cost, s.shares[from].cost), cmp.Compare(namespace, from)) > 0 {
			if e := leastRecent(taken.recent); e != nil {
				last, from = e, namespace
			}
		}
	}
	if last == nil {
		return errAllOpen
	}
	return s.removeFrom(last, from)
}

// leastRecent returns the least recently used entry that is not open, nil when there is none.
func leastRecent(entries *list.List) *entry {
	for element := entries.Back(); element != nil; element = element.Prev() {
		if e := element.Value.(*entry); e.pins == 0 {
			return e
		}
	}
	return nil
}

// removeFrom takes the content from the sources of the namespace, and removes it when no other namespace has it.
func (s *Store) removeFrom(e *entry, namespace string) error {
	if len(e.shared) == 1 {
		return s.remove(e)
	}
	for by, of := range maps.Clone(e.owners) {
		if of == namespace {
			if err := s.removeOwner(e, by); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) remove(e *entry) error {
	if err := os.RemoveAll(s.path(e.digest)); err != nil {
		return err
	}
	s.drop(e)
	return nil
}
