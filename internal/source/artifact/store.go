// Package artifact keeps the content of artifacts, the tarballs that sources publish, in one store on the local disk.
//
// An artifact is identified by its digest, and by the sources that it was fetched for: knowing a digest is not enough to get the content.
// An artifact is downloaded once per source, however many callers request it. Its digest is verified and its archive is checked before it
// is visible. It stays until its room is needed; the namespace that takes the most room loses artifacts first. Everything is bounded: the
// size of a download, its time, its unpacked size, and the size of the store. An artifact that no server has is made by a Maker, under the
// same rules.
package artifact

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/lru"

	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
)

// maxMade is how many digests of made artifacts are kept in memory, about 200 bytes each. An artifact whose digest is dropped is made
// again.
const maxMade = 16384

// Limits bounds one artifact.
type Limits = archive.Limits

// Options of a Store. Fields other than Dir have a default.
type Options struct {
	// Dir holds the content, as <algorithm>/<hex>/content, and beside it a file for each source that it was fetched for. It is created if
	// it is missing, and belongs to one store at a time.
	Dir string
	// Limits bounds each artifact.
	Limits Limits
	// MaxStoreSize is the size in bytes of all artifacts together; default 1 GiB, at least MaxDownloadSize. It is exceeded while open
	// artifacts, which are not evicted, leave no room. Downloads in progress are not counted.
	MaxStoreSize int64
	// MaxStored is the maximum number of artifacts, because each takes memory and inodes however small it is; default 32768.
	MaxStored int
	// HTTPRetries is how often a download is tried again, within about a second, when the server or the connection
	// fails; default 2, negative for never.
	HTTPRetries int
	// HTTPTimeout bounds a download with all its tries; default 1 minute.
	HTTPTimeout time.Duration
	// Untrusted says that URLs may come from tenants, who must not learn about the network of this process, or use it.
	Untrusted bool
	// Metrics are the metrics about artifacts; nil measures nothing.
	Metrics *metrics.Artifacts
	// Transport sends the requests for artifacts, for example over mutual TLS. By default they are sent as their URLs say.
	Transport http.RoundTripper
	// Log receives messages about content that had to be removed. By default nothing is logged.
	Log logr.Logger
}

// Store is a bounded set of artifacts on disk. It is safe for concurrent use.
type Store struct {
	options   Options
	downloads *download.Downloader
	// flights has the running downloads, one per source, digest and URL, and the running Makers, one per key. Two sources that publish the
	// same digest do not share a download: a source gets only what its own server sends, and a server that is stuck delays only its own
	// users.
	flights singleflight.Group
	// made has the digests of the most recently used artifacts that were made, by owner.
	made *lru.Cache

	mu      sync.Mutex
	entries map[digest.Digest]*entry
	// recent orders the entries, most recently used first.
	recent *list.List
	// shares has what each namespace takes of the store; a namespace that takes nothing is not in it.
	shares map[string]*namespaceUsage
	size   int64
	// owners is how many owners the entries have together.
	owners int
	// kept has, by who said it, the digests of the content that is still needed although it may not be used for long, see Keep.
	kept map[string][]digest.Digest
}

// entry is an artifact on disk. Its fields are guarded by Store.mu.
type entry struct {
	digest digest.Digest
	size   int64
	// owners are the sources on whose behalf the content was fetched or made, with the namespace that it is counted for.
	owners map[owner]string
	// pins counts the open files; a pinned entry is not evicted.
	pins    int
	element *list.Element
	// shared has the place of the entry in the share of each namespace that it is counted for.
	shared map[string]*list.Element
	// last is when the content was used last.
	last time.Time
	// used says that the content was used after it was fetched, or is of an earlier process. Guarded by Store.mu.
	used bool
	// verified is false for content of an earlier process: the disk may have damaged it since.
	verified atomic.Bool
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

// tlsAdvice is for an artifact server that has mutual TLS when this controller has not.
const tlsAdvice = "a server that requires mutual TLS answers plain HTTP so; --authorized-artifact-server-spiffe-id of this controller makes it use mutual TLS"

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
	s := &Store{options: options, entries: map[digest.Digest]*entry{}, recent: list.New(), shares: map[string]*namespaceUsage{}, made: lru.New(maxMade), kept: map[string][]digest.Digest{}}
	downloads := download.Options{
		MaxSize: options.Limits.MaxDownloadSize, Retries: options.HTTPRetries, Timeout: options.HTTPTimeout,
		Untrusted: options.Untrusted, Log: options.Log, Transport: options.Transport,
	}
	if options.Transport == nil {
		downloads.TLSAdvice = tlsAdvice
	}
	s.downloads = download.New(downloads)
	if err := s.openDirectory(); err != nil {
		return nil, fmt.Errorf("artifact store: %w", err)
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	o.Limits = o.Limits.WithDefaults()
	o.MaxStoreSize = cmp.Or(max(o.MaxStoreSize, 0), max(1<<30, o.Limits.MaxDownloadSize))
	o.MaxStored = cmp.Or(max(o.MaxStored, 0), 32768)
	o.HTTPRetries = max(cmp.Or(o.HTTPRetries, 2), 0)
	o.HTTPTimeout = cmp.Or(max(o.HTTPTimeout, 0), time.Minute)
	return o
}

// Stored returns the digest under which the artifact is stored on behalf of its source, empty when it is not. Content of an earlier process
// counts as stored before it is verified. If the reference has a Maker and no digest, the artifact is found as long as the store keeps its
// digest, see maxMade.
func (s *Store) Stored(ref Reference) string {
	wanted := digest.Digest(ref.Digest)
	if known, ok := s.made.Get(ref.owner()); ok && wanted == "" && ref.Maker != nil {
		wanted = known.(digest.Digest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[wanted]; e != nil {
		if _, owned := e.owners[ref.owner()]; owned {
			return wanted.String()
		}
	}
	return ""
}

// Open opens the artifact that is stored on behalf of the source of the reference, to be closed by the caller. The error wraps
// ErrNotStored when the store does not have it; it may be fetched then. Content of an earlier process is verified when it is
// first opened.
func (s *Store) Open(ref Reference) (*File, error) {
	stored := s.Stored(ref)
	if stored == "" {
		return nil, fmt.Errorf("open artifact %.160q: %w", ref.Digest, ErrNotStored)
	}
	file, err := s.open(digest.Digest(stored))
	if err == nil {
		s.countUse(digest.Digest(stored))
	}
	return file, err
}

// countUse counts the use of stored content.
func (s *Store) countUse(stored digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[stored]; e != nil {
		s.options.Metrics.Used(!e.used)
		e.used = true
	}
}

// Size returns how many bytes the stored artifacts take.
func (s *Store) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size
}

// open is like Open, for callers that have already checked who may use the content.
func (s *Store) open(stored digest.Digest) (*File, error) {
	e := s.pin(stored)
	if e == nil {
		return nil, fmt.Errorf("open artifact %s: %w", stored, ErrNotStored)
	}
	file, err := os.Open(s.contentPath(e.digest))
	if err == nil {
		if err = e.verify(file); err != nil {
			file.Close()
		}
	}
	if err != nil {
		s.unpin(e)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
			s.forget(e, err)
			return nil, fmt.Errorf("open artifact %s: %w: %w", stored, ErrNotStored, err)
		}
		return nil, fmt.Errorf("open artifact %s: %w", stored, err)
	}
	return &File{File: file, Size: e.size, release: func() { s.unpin(e) }}, nil
}

var errDamaged = errors.New("the content is damaged")

// verify reads the content unless it was verified before. The file is at its start afterwards.
func (e *entry) verify(file *os.File) error {
	e.verification.Lock()
	defer e.verification.Unlock()
	if e.verified.Load() {
		return nil
	}
	verifier := e.digest.Verifier()
	if _, err := io.Copy(verifier, file); err != nil {
		return fmt.Errorf("verify its digest: %w", err)
	}
	if !verifier.Verified() {
		return errDamaged
	}
	e.verified.Store(true)
	_, err := file.Seek(0, io.SeekStart)
	return err
}

// path of the directory of an entry. The digest is valid, so that the path stays in the directory of the store.
func (s *Store) path(d digest.Digest) string {
	return filepath.Join(s.options.Dir, d.Algorithm().String(), d.Encoded())
}

func (s *Store) contentPath(d digest.Digest) string {
	return filepath.Join(s.path(d), contentFile)
}
