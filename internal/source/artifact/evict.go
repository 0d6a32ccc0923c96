package artifact

import (
	"cmp"
	"container/list"
	"errors"
	"maps"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/util/sets"
)

// unusedAfter is how long content can be unused before it is evicted first, whichever namespace has it.
const unusedAfter = 24 * time.Hour

// namespaceUsage is what a namespace takes of the store. Content that several namespaces have counts for each of them.
type namespaceUsage struct {
	// recent orders the entries, most recently used first.
	recent *list.List
	cost   int64
}

// cost returns the size of the entry plus a fixed amount for the memory and inodes that each entry takes. It does not include the owners.
func (s *Store) cost(e *entry) int64 { return e.size + s.bytesPerEntry() }

// bytesPerEntry returns how many bytes of a full store there are for each entry, on average.
func (s *Store) bytesPerEntry() int64 { return s.options.MaxStoreSize / int64(s.options.MaxStored) }

// count adds the entry to what the namespace takes. Callers hold the lock.
func (s *Store) count(e *entry, namespace string) {
	if e.shared[namespace] != nil {
		return
	}
	taken := s.shares[namespace]
	if taken == nil {
		taken = &namespaceUsage{recent: list.New()}
		s.shares[namespace] = taken
	}
	e.shared[namespace] = taken.recent.PushFront(e)
	taken.cost += s.cost(e)
}

// countOwner adds the file of an owner to what its namespace takes, and the entry unless it is counted already. Callers hold the lock.
func (s *Store) countOwner(e *entry, namespace string) {
	s.count(e, namespace)
	s.shares[namespace].cost += s.bytesPerEntry() / ownersPerEntry
	s.owners++
}

// discountOwner is the reverse of countOwner for the file. Callers hold the lock.
func (s *Store) discountOwner(namespace string) {
	s.shares[namespace].cost -= s.bytesPerEntry() / ownersPerEntry
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

// Keep says which content the holder still needs although it may not be used for long, in place of what it said before. Of the content of a
// namespace, this is evicted last: a source publishes only its newest artifact, so nobody could get it again. Between namespaces it makes no
// difference, so nobody can fill the store with it.
func (s *Store) Keep(holder string, digests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, holder)
	for _, wanted := range digests {
		if wanted != "" {
			s.kept[holder] = append(s.kept[holder], digest.Digest(wanted))
		}
	}
}

// keptDigests returns what Keep was told. Callers hold the lock.
func (s *Store) keptDigests() sets.Set[digest.Digest] {
	kept := sets.Set[digest.Digest]{}
	for _, digests := range s.kept {
		kept.Insert(digests...)
	}
	return kept
}

// evict removes content that is not open until there is room for an artifact of that size; with 0, until the store is within its bounds. It
// first removes content that was not used for a day and is not kept. Then it removes the least recently used content of the namespace that takes the
// most room, and what is kept last. Callers hold the lock.
func (s *Store) evict(room int64) {
	isFull := func() bool {
		return s.size+room > s.options.MaxStoreSize || int64(len(s.entries))+min(room, 1) > int64(s.options.MaxStored) ||
			s.owners > ownersPerEntry*s.options.MaxStored
	}
	if !isFull() {
		return
	}
	kept := s.keptDigests()
	first := func(entries *list.List) *entry { return cmp.Or(leastRecent(entries, kept), leastRecent(entries, nil)) }
	for isFull() {
		if err := s.evictOne(kept, first); err != nil {
			if !errors.Is(err, errAllOpen) {
				s.options.Log.Error(err, "cannot evict an artifact")
			}
			return
		}
	}
}

// freeDisk evicts content of the size of one artifact although the store is within its bounds, because the disk is smaller than they are. It
// reports whether there is more room now. It evicts nothing that is kept or open: the disk may be full of something else.
func (s *Store) freeDisk() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, kept := s.size, s.keptDigests()
	first := func(entries *list.List) *entry { return leastRecent(entries, kept) }
	for before-s.size < s.options.Limits.MaxDownloadSize && first(s.recent) != nil {
		if err := s.evictOne(kept, first); err != nil {
			s.options.Log.Error(err, "cannot evict an artifact")
			break
		}
	}
	return s.size < before
}

var errAllOpen = errors.New("all artifacts are open")

// evictOne evicts content that was not used for a day, or else what is the first of the namespace that takes the most room, of those that have
// one. Callers hold the lock.
func (s *Store) evictOne(kept sets.Set[digest.Digest], first func(*list.List) *entry) error {
	if unused := leastRecent(s.recent, kept); unused != nil && time.Since(unused.last) > unusedAfter {
		return s.remove(unused)
	}
	var last *entry
	var from string
	for namespace, taken := range s.shares {
		if last == nil || cmp.Or(cmp.Compare(taken.cost, s.shares[from].cost), cmp.Compare(namespace, from)) > 0 {
			if e := first(taken.recent); e != nil {
				last, from = e, namespace
			}
		}
	}
	if last == nil {
		return errAllOpen
	}
	return s.removeFrom(last, from)
}

// leastRecent returns the least recently used entry that is neither open nor kept, nil when there is none.
func leastRecent(entries *list.List, kept sets.Set[digest.Digest]) *entry {
	for element := entries.Back(); element != nil; element = element.Prev() {
		if e := element.Value.(*entry); e.pins == 0 && !kept.Has(e.digest) {
			return e
		}
	}
	return nil
}

// removeFrom removes the sources of the namespace from the owners of the content. It removes the content if no other namespace has it.
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
