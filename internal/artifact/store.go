// Package artifact keeps the content of artifacts, the tarballs that sources publish, in one store on the local disk.
//
// An artifact is known by its digest. It is downloaded once however many ask for it, its digest is verified and its
// archive checked before it can be seen, and it stays until the room is needed for others. Everything is bounded: the
// size of a download, its time, what it unpacks to, and the size of the store. What nobody serves is made by a Maker
// instead, under the same rules.
//
// fluxcd/pkg/http/fetch downloads artifacts too. It is not used because it waits at least five seconds between tries,
// makes a client of its own per use, downloads what is too large to its end, and gives no typed errors.
package artifact

import (
	"container/list"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

// Limits bounds one artifact.
type Limits = archive.Limits

// HostOverrideVariable is the environment variable that every Flux controller knows for runs outside of a cluster.
const HostOverrideVariable = "SOURCE_CONTROLLER_LOCALHOST"

// Options of a Store. Fields other than Dir have a default.
type Options struct {
	// Dir holds the content, as <algorithm>/<hex>. It is made when missing, and belongs to one store at a time.
	Dir string
	// Limits bounds each artifact.
	Limits Limits
	// MaxStoreSize is the size in bytes of all artifacts together; default 1 GiB, at least MaxDownloadSize. It is
	// exceeded while artifacts that are open leave no room. Downloads in progress come on top.
	MaxStoreSize int64
	// HTTPRetries is how often a download is tried again, within about a second, when the server or the connection
	// fails; default 2, negative for never.
	HTTPRetries int
	// HTTPTimeout bounds a download with all its tries; default 1 minute.
	HTTPTimeout time.Duration
	// TLS configures https connections; default is the system's roots.
	TLS *tls.Config
	// HostOverride replaces host and port of every URL; default is the environment variable HostOverrideVariable.
	HostOverride string
	// Log tells about content that had to be removed; default is silence.
	Log logr.Logger
}

// Store is a bounded set of artifacts on disk. It is safe for concurrent use.
type Store struct {
	options Options
	client  *http.Client
	flights flights
	made    made

	mu      sync.Mutex
	entries map[digest.Digest]*entry
	// recent orders the entries, most recently used first.
	recent *list.List
	size   int64
}

// entry is an artifact on disk. Its fields are guarded by Store.mu.
type entry struct {
	digest digest.Digest
	size   int64
	// pins counts the open files; a pinned entry is not evicted.
	pins    int
	element *list.Element
	// verified is false for content of an earlier process: the disk may have damaged it since.
	verified bool
	// verification lets one goroutine at a time read the content to verify it.
	verification sync.Mutex
}

// File is an open artifact, which is not evicted until it is closed.
type File struct {
	*os.File
	// Size in bytes.
	Size int64

	once    sync.Once
	release func()
}

// Close closes the file and lets the store evict it.
func (f *File) Close() error {
	err := f.File.Close()
	f.once.Do(f.release)
	return err
}

// NewStore opens the store in the directory and finds what an earlier process left there.
func NewStore(options Options) (*Store, error) {
	options = options.withDefaults()
	if options.Dir == "" {
		return nil, errors.New("artifact store: no directory is given")
	}
	if options.MaxStoreSize < options.Limits.MaxDownloadSize {
		return nil, fmt.Errorf("artifact store: its size of %d bytes is less than the %d bytes of one artifact",
			options.MaxStoreSize, options.Limits.MaxDownloadSize)
	}
	s := &Store{options: options, entries: map[digest.Digest]*entry{}, recent: list.New(), made: newMade(maxMade)}
	s.client = newHTTPClient(options)
	if err := s.openDirectory(); err != nil {
		return nil, fmt.Errorf("artifact store: %w", err)
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	o.Limits = o.Limits.WithDefaults()
	if o.MaxStoreSize <= 0 {
		o.MaxStoreSize = max(1<<30, o.Limits.MaxDownloadSize)
	}
	switch {
	case o.HTTPRetries == 0:
		o.HTTPRetries = 2
	case o.HTTPRetries < 0:
		o.HTTPRetries = 0
	}
	if o.HTTPTimeout <= 0 {
		o.HTTPTimeout = time.Minute
	}
	if o.HostOverride == "" {
		o.HostOverride = os.Getenv(HostOverrideVariable)
	}
	return o
}

// Has reports whether the artifact is stored. Content of an earlier process counts before it is verified.
func (s *Store) Has(wanted string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.entries[digest.Digest(wanted)]
	return ok
}

// Open opens the artifact, to be closed by the caller. The error wraps ErrNotStored when the store does not have it; it
// may be fetched then. Content of an earlier process is verified when it is first opened.
func (s *Store) Open(wanted string) (*File, error) {
	e, verified := s.pin(digest.Digest(wanted))
	if e == nil {
		return nil, fmt.Errorf("open artifact %.160q: %w", wanted, ErrNotStored)
	}
	file, err := os.Open(s.path(e.digest))
	if err == nil && !verified {
		if err = s.verify(e, file); err != nil {
			file.Close()
		}
	}
	if err != nil {
		s.unpin(e)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
			s.forget(e, err)
			return nil, fmt.Errorf("open artifact %s: %w: %w", wanted, ErrNotStored, err)
		}
		return nil, fmt.Errorf("open artifact %s: %w", wanted, err)
	}
	return &File{File: file, Size: e.size, release: func() { s.unpin(e) }}, nil
}

var errDamaged = errors.New("the content is damaged")

// verify reads the content unless another goroutine did. The file is at its start afterwards.
func (s *Store) verify(e *entry, file *os.File) error {
	e.verification.Lock()
	defer e.verification.Unlock()
	if s.isVerified(e) {
		return nil
	}
	verifier := e.digest.Verifier()
	if _, err := io.Copy(verifier, file); err != nil {
		return fmt.Errorf("verify its digest: %w", err)
	}
	if !verifier.Verified() {
		return errDamaged
	}
	s.setVerified(e)
	_, err := file.Seek(0, io.SeekStart)
	return err
}

// path of the content. The digest is valid, so that the path stays in the directory.
func (s *Store) path(d digest.Digest) string {
	return filepath.Join(s.options.Dir, d.Algorithm().String(), d.Encoded())
}
