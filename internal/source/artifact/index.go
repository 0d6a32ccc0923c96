package artifact

import (
	"cmp"
	"container/list"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

const (
	// incomingDirectory is where content is written before it is accepted. It is on the same file system as the rest, so that content is
	// moved to its final place in one step.
	incomingDirectory = "incoming"
	// contentFile is the content in the directory of an entry. Beside it is a file for each owner, named ownerPrefix and the owner. It
	// contains the namespace that the content is counted for.
	contentFile = "content"
	ownerPrefix = "for-"
	// maxOwners is how many owners one entry can have. When an owner is dropped, its next request fetches the content again.
	maxOwners = 4096
	// ownersPerEntry is how many owners the entries of a full store can have, on average. The file of an owner is small, but takes a block
	// of the disk and an inode.
	ownersPerEntry = 8
)

// openDirectory prepares the directory, removes content that an earlier process did not accept before it ended, and indexes the content
// that it accepted.
func (s *Store) openDirectory() error {
	incoming := filepath.Join(s.options.Dir, incomingDirectory)
	if err := os.RemoveAll(incoming); err != nil {
		return err
	}
	if err := os.MkdirAll(incoming, 0o700); err != nil {
		return err
	}
	var entries []*entry
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
			found, err := s.findEntry(digest.NewDigestFromEncoded(algorithm, file.Name()))
			if err != nil {
				return err
			}
			if found != nil {
				entries = append(entries, found)
			}
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Or(a.last.Compare(b.last), cmp.Compare(a.digest, b.digest)) })
	for _, found := range entries {
		s.insert(found)
	}
	s.evict(0)
	return nil
}

// findEntry reads an entry that an earlier process left. If the entry is not complete, or an earlier version stored its content without
// owners, findEntry removes it and returns nil.
func (s *Store) findEntry(d digest.Digest) (*entry, error) {
	content, err := os.Lstat(s.contentPath(d))
	if err != nil || !content.Mode().IsRegular() {
		return nil, os.RemoveAll(s.path(d))
	}
	files, err := os.ReadDir(s.path(d))
	if err != nil {
		return nil, err
	}
	found := &entry{digest: d, size: content.Size(), used: true, last: content.ModTime(), owners: map[owner]string{}}
	for _, file := range files {
		if by, ok := strings.CutPrefix(file.Name(), ownerPrefix); ok && digest.SHA256.Validate(by) == nil {
			namespace, err := os.ReadFile(s.ownerPath(d, owner(by)))
			if err != nil {
				return nil, err
			}
			found.owners[owner(by)] = string(namespace)
		}
	}
	return found, nil
}

// insert adds an entry as the most recently used one. Callers hold the lock, unless nothing else uses the store yet.
func (s *Store) insert(e *entry) {
	e.element = s.recent.PushFront(e)
	s.entries[e.digest] = e
	s.size += e.size
	e.shared = map[string]*list.Element{}
	for _, namespace := range e.owners {
		s.countOwner(e, namespace)
	}
}

// drop removes the entry from the index. Callers hold the lock.
func (s *Store) drop(e *entry) {
	s.recent.Remove(e.element)
	delete(s.entries, e.digest)
	s.size -= e.size
	for _, namespace := range e.owners {
		s.discountOwner(namespace)
	}
	for namespace := range e.shared {
		s.discount(e, namespace)
	}
}

// accept makes the incoming content visible under its digest for the owner, counts it for the namespace, and evicts other content to make
// room for it.
func (s *Store) accept(received incoming, by owner, namespace string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := received.digest
	known := s.entries[d]
	if known != nil && known.verified.Load() {
		s.used(known)
		err := s.addOwner(known, by, namespace)
		s.evict(0)
		return err
	}
	if known != nil {
		s.drop(known)
	}
	s.evict(received.size)
	e := &entry{digest: d, size: received.size, owners: map[owner]string{}}
	if known != nil {
		e.owners = known.owners
	}
	if err := s.moveIn(received); err != nil {
		return errors.Join(err, os.RemoveAll(s.path(d)))
	}
	e.verified.Store(true)
	s.insert(e)
	s.used(e)
	err := s.addOwner(e, by, namespace)
	if len(e.owners) == 0 {
		// Nobody could ever get it, and it would count for no namespace.
		err = errors.Join(err, s.remove(e))
	}
	return err
}

// moveIn moves the incoming content to its place. Callers hold the lock.
func (s *Store) moveIn(received incoming) error {
	if err := os.MkdirAll(s.path(received.digest), 0o700); err != nil {
		return err
	}
	// The file is not synced to disk. Damage from a crash of the machine is found when the content is opened next; then the content is
	// fetched again.
	return os.Rename(received.path, s.contentPath(received.digest))
}

// addOwner records the owner for which the content was fetched, for this process and the next. Callers hold the lock.
func (s *Store) addOwner(e *entry, by owner, namespace string) error {
	if _, known := e.owners[by]; known {
		return nil
	}
	for len(e.owners) >= maxOwners {
		if err := s.removeOwner(e, e.ownerOfMost()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(s.ownerPath(e.digest, by), []byte(namespace), 0o600); err != nil {
		_ = os.Remove(s.ownerPath(e.digest, by)) // it may be there without its content
		return err
	}
	e.owners[by] = namespace
	s.countOwner(e, namespace)
	return nil
}

// ownerOfMost returns an owner of the namespace that has most of the owners: whoever has many takes no place from others.
func (e *entry) ownerOfMost() (found owner) {
	count, most := map[string]int{}, 0
	for by, namespace := range e.owners {
		if count[namespace]++; count[namespace] > most {
			found, most = by, count[namespace]
		}
	}
	return found
}

// removeOwner removes an owner of the content. The next request of that owner fetches the content again. Callers hold the lock.
func (s *Store) removeOwner(e *entry, by owner) error {
	if err := os.Remove(s.ownerPath(e.digest, by)); err != nil {
		return err
	}
	namespace := e.owners[by]
	delete(e.owners, by)
	s.discountOwner(namespace)
	if !slices.Contains(slices.Collect(maps.Values(e.owners)), namespace) {
		s.discount(e, namespace)
	}
	return nil
}

func (s *Store) ownerPath(d digest.Digest, by owner) string {
	return filepath.Join(s.path(d), ownerPrefix+string(by))
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
	e.last = time.Now()
	s.recent.MoveToFront(e.element)
	for namespace, element := range e.shared {
		s.shares[namespace].recent.MoveToFront(element)
	}
	// The time is only a hint, so an error does not matter. It is set from the clock of this process, because that of the file system is
	// coarser.
	_ = os.Chtimes(s.contentPath(e.digest), time.Time{}, e.last)
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
