package artifact

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// incomingDirectory is where content is written before it is accepted. It is on the same file system as the rest, so
// that content appears under its digest at once and complete.
const incomingDirectory = "incoming"

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
	type found struct {
		digest digest.Digest
		info   fs.FileInfo
	}
	var kept []found
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
			info, err := file.Info()
			if err != nil {
				return err
			}
			if info.Mode().IsRegular() && algorithm.Validate(file.Name()) == nil {
				kept = append(kept, found{digest.NewDigestFromEncoded(algorithm, file.Name()), info})
			}
		}
	}
	slices.SortFunc(kept, func(a, b found) int {
		return cmp.Or(a.info.ModTime().Compare(b.info.ModTime()), cmp.Compare(a.digest, b.digest))
	})
	for _, f := range kept {
		s.insert(f.digest, f.info.Size())
	}
	s.evict(0)
	return nil
}

// insert adds an unverified entry, as the most recently used one. Callers hold the lock, or nobody else knows the store.
func (s *Store) insert(d digest.Digest, size int64) *entry {
	e := &entry{digest: d, size: size}
	e.element = s.recent.PushFront(e)
	s.entries[d] = e
	s.size += size
	return e
}

// drop takes the entry out of the index. Callers hold the lock.
func (s *Store) drop(e *entry) {
	s.recent.Remove(e.element)
	delete(s.entries, e.digest)
	s.size -= e.size
}

// accept makes the incoming file visible under its digest, and removes others that have to make room for it.
func (s *Store) accept(incoming string, d digest.Digest, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.entries[d]; known != nil {
		if known.verified {
			s.used(known)
			return os.Remove(incoming)
		}
		s.drop(known)
	}
	s.evict(size)
	// Not synced to disk: what a crash of the machine damages is found when it is opened next, and fetched again.
	if err := os.Rename(incoming, s.path(d)); err != nil {
		return err
	}
	e := s.insert(d, size)
	e.verified = true
	s.used(e)
	return nil
}

// evict removes the least recently used content that is not open, until there is room for more bytes. Callers hold the
// lock.
func (s *Store) evict(room int64) {
	for element := s.recent.Back(); element != nil && s.size+room > s.options.MaxStoreSize; {
		e := element.Value.(*entry)
		element = element.Prev()
		if e.pins > 0 {
			continue
		}
		if err := os.Remove(s.path(e.digest)); err != nil && !os.IsNotExist(err) {
			s.options.Log.Error(err, "cannot evict an artifact", "digest", e.digest)
			continue
		}
		s.drop(e)
	}
}

// pin finds the entry and keeps it from being evicted.
func (s *Store) pin(d digest.Digest) (e *entry, verified bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.entries[d]
	if e == nil {
		return nil, false
	}
	e.pins++
	s.used(e)
	return e, e.verified
}

// used makes the entry the most recently used one, now and after a restart. Callers hold the lock.
func (s *Store) used(e *entry) {
	s.recent.MoveToFront(e.element)
	// Only a hint, so that an error does not matter. Our clock, because that of the file system is coarser.
	_ = os.Chtimes(s.path(e.digest), time.Time{}, time.Now())
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
	if err := os.Remove(s.path(e.digest)); err != nil && !os.IsNotExist(err) {
		s.options.Log.Error(err, "cannot remove a stored artifact", "digest", e.digest)
	}
}

func (s *Store) isVerified(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.verified
}

func (s *Store) setVerified(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.verified = true
}
