package artifact

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// incomingDirectory is where content is written before it is accepted. It is on the same file system as the rest, so
	// that content appears under its digest at once and complete.
	incomingDirectory = "incoming"
	// contentFile is the content in the directory of an entry. Beside it is an empty file per owner, ownerPrefix and its hash.
	contentFile = "content"
	ownerPrefix = "for-"
	// maxOwners is how many owners of one entry are remembered. One that is forgotten has it fetched again.
	maxOwners = 4096
)

// openDirectory prepares the directory, removes what was not accepted when an earlier process ended, and takes in what
// was.
func (s *Store) openDirectory() error {
	incoming := filepath.Join(s.options.Dir, incomingDirectory)
	if err := os.RemoveAll(incoming); err != nil {
		return err
	}
	if err := os.MkdirAll(incoming, 0o700); err != nil {
		return err
	}
	used := map[*entry]time.Time{}
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512, digest.BLAKE3} {
		dir := filepath.Join(s.options.Dir, algorithm.String())
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, file := range files {
			if algorithm.Validate(file.Name()) != nil {
				continue
			}
			found, last, err := s.findEntry(digest.NewDigestFromEncoded(algorithm, file.Name()))
			if err != nil {
				return err
			}
			if found != nil {
				used[found] = last
			}
		}
	}
	for _, found := range slices.SortedFunc(maps.Keys(used), func(a, b *entry) int {
		return cmp.Or(used[a].Compare(used[b]), cmp.Compare(a.digest, b.digest))
	}) {
		s.insert(found)
	}
	s.evict(0)
	return nil
}

// findEntry reads what an earlier process left of an entry, and when that was last used. It removes one that is not complete, and
// content that an earlier version stored without its owners, and returns nil then.
func (s *Store) findEntry(d digest.Digest) (*entry, time.Time, error) {
	content, err := os.Lstat(s.contentPath(d))
	if err != nil || !content.Mode().IsRegular() {
		return nil, time.Time{}, os.RemoveAll(s.path(d))
	}
	files, err := os.ReadDir(s.path(d))
	if err != nil {
		return nil, time.Time{}, err
	}
	found := &entry{digest: d, size: content.Size(), used: true, owners: sets.New[owner]()}
	for _, file := range files {
		if by, ok := strings.CutPrefix(file.Name(), ownerPrefix); ok && digest.SHA256.Validate(by) == nil {
			found.owners.Insert(owner(by))
		}
	}
	return found, content.ModTime(), nil
}

// insert adds an entry as the most recently used one. Callers hold the lock, or nobody else knows the store.
func (s *Store) insert(e *entry) {
	e.element = s.recent.PushFront(e)
	s.entries[e.digest] = e
	s.size += e.size
}

// drop takes the entry out of the index. Callers hold the lock.
func (s *Store) drop(e *entry) {
	s.recent.Remove(e.element)
	delete(s.entries, e.digest)
	s.size -= e.size
}

// accept makes the incoming content visible under its digest for the owner, and removes others that have to make room for it.
func (s *Store) accept(received incoming, by owner) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := received.digest
	known := s.entries[d]
	if known != nil && known.verified.Load() {
		s.used(known)
		return s.addOwner(known, by)
	}
	if known != nil {
		s.drop(known)
	}
	s.evict(received.size)
	if err := os.MkdirAll(s.path(d), 0o700); err != nil {
		return err
	}
	// Not synced to disk: what a crash of the machine damages is found when it is opened next, and fetched again.
	if err := os.Rename(received.path, s.contentPath(d)); err != nil {
		return err
	}
	e := &entry{digest: d, size: received.size, owners: sets.New[owner]()}
	if known != nil {
		e.owners = known.owners
	}
	e.verified.Store(true)
	s.insert(e)
	s.used(e)
	return s.addOwner(e, by)
}

// addOwner notes on whose behalf the content was fetched, for this process and the next. Callers hold the lock.
func (s *Store) addOwner(e *entry, by owner) error {
	if e.owners.Has(by) {
		return nil
	}
	for another := range e.owners {
		if len(e.owners) < maxOwners {
			break
		}
		if err := os.Remove(s.ownerPath(e.digest, another)); err != nil {
			return err
		}
		e.owners.Delete(another)
	}
	if err := os.WriteFile(s.ownerPath(e.digest, by), nil, 0o600); err != nil {
		return err
	}
	e.owners.Insert(by)
	return nil
}

func (s *Store) ownerPath(d digest.Digest, by owner) string {
	return filepath.Join(s.path(d), ownerPrefix+string(by))
}

// evict removes the least recently used content that is not open, until there is room for another artifact of that size, or for none when it
// is 0. Callers hold the lock.
func (s *Store) evict(room int64) {
	isFull := func() bool {
		return s.size+room > s.options.MaxStoreSize || int64(len(s.entries))+min(room, 1) > int64(s.options.MaxStored)
	}
	for element := s.recent.Back(); element != nil && isFull(); {
		e := element.Value.(*entry)
		element = element.Prev()
		if e.pins > 0 {
			continue
		}
		if err := os.RemoveAll(s.path(e.digest)); err != nil {
			s.options.Log.Error(err, "cannot evict an artifact", "digest", e.digest)
			continue
		}
		s.drop(e)
	}
}

// pin finds the entry, nil when there is none, and keeps it from being evicted.
func (s *Store) pin(d digest.Digest) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[d]
	if e != nil {
		e.pins++
		s.used(e)
	}
	return e
}

// used makes the entry the most recently used one, now and after a restart. Callers hold the lock.
func (s *Store) used(e *entry) {
	s.recent.MoveToFront(e.element)
	// Only a hint, so that an error does not matter. Our clock, because that of the file system is coarser.
	_ = os.Chtimes(s.contentPath(e.digest), time.Time{}, time.Now())
}

func (s *Store) unpin(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.pins--
	s.evict(0)
}

// forget removes content that turned out to be unusable.
func (s *Store) forget(e *entry, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[e.digest] != e {
		return // It was replaced meanwhile.
	}
	s.options.Log.Error(reason, "removing a stored artifact", "digest", e.digest)
	s.drop(e)
	if err := os.RemoveAll(s.path(e.digest)); err != nil {
		s.options.Log.Error(err, "cannot remove a stored artifact", "digest", e.digest)
	}
}
