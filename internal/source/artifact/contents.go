package artifact

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/stack-controller/stack-controller/internal/bytecache"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

const (
	// contentReaders is how many artifacts are read, or matched, at the same time for one namespace.
	contentReaders = 2
	// maxManifestSize bounds the memory of one manifest in bytes. A hundred thousand files with names of 200 bytes fit into it.
	maxManifestSize = 32 << 20
	// maxManifests bounds the memory of all manifests that are kept, in bytes.
	maxManifests = 2 * maxManifestSize
	// fileOverhead is the memory of a file besides its name, in bytes: its sum and the header of its name, twice because slices grow in
	// steps.
	fileOverhead = 2 * (sha256.Size + 16)
	// maxContents bounds the memory of the results for parts of artifacts, in bytes.
	maxContents = 8 << 20
)

// Content describes the part of an artifact that a Selection selects.
type Content struct {
	// Digest, "sha256:…", is the same for two artifacts if all selected files are the same. It is the digest of the whole artifact if the
	// artifact has too many files to compare them one by one.
	Digest string
	// Unmatched are the selected paths that match no file.
	Unmatched []string
}

// Contents compares parts of stored artifacts. It reads each artifact once, in the background, and matches it once with each selection,
// however many callers request it. It keeps the results in bounded memory. It is a manager.Runnable.
type Contents struct {
	store *Store
	work  *background[contentKey, *Selection]
	// reading lets concurrent callers share one reading of a manifest.
	reading singleflight.Group

	mu        sync.Mutex
	known     *bytecache.Cache[contentPart, foundContent]
	manifests *bytecache.Cache[string, *manifest]
}

// contentPart is a part of an artifact.
type contentPart struct {
	artifact  string
	selection [sha256.Size]byte
}

// contentKey is a part that is requested for a namespace. Each namespace has its own place in the queue.
type contentKey struct {
	namespace string
	contentPart
}

// foundContent is the Content for all selections with the same key, which may be written in different ways.
type foundContent struct {
	digest    string
	unmatched []int
	// err is an error that another attempt would not change.
	err error
}

// NewContents returns the Contents of a Store. Requests are queued at once; reading begins when it is started.
func NewContents(store *Store) *Contents {
	return &Contents{
		store:     store,
		work:      newBackground[contentKey, *Selection](contentReaders, func(key contentKey) string { return key.namespace }),
		known:     bytecache.New[contentPart, foundContent](maxContents),
		manifests: bytecache.New[string, *manifest](maxManifests),
	}
}

// Events returns a channel that receives the waiter of a Request when the result for its part is there. The waiter is an object with only a
// namespace and a name. The channel is never closed.
func (c *Contents) Events() <-chan event.GenericEvent { return c.work.Events() }

// Request returns the Content of the stored artifact for the selection; without a selection, that of the whole artifact. The reference must
// have a digest. Request does not wait: nil without an error means that the artifact is being read or matched, and that Events will send
// the waiter. The error wraps ErrNotStored if the artifact has to be fetched first. Each waiter gets this and other errors once, and its
// next request tries again. Only ErrSelectionTooComplex is returned every time.
func (c *Contents) Request(ref Reference, selection *Selection, waiter types.NamespacedName) (*Content, error) {
	switch {
	case selection == nil:
		return &Content{Digest: ref.Digest}, nil
	case c.store.Stored(ref) == "":
		return nil, fmt.Errorf("read artifact %.160q: %w", ref.Digest, ErrNotStored)
	}
	part := contentPart{ref.Digest, selection.key}
	if found, ok := c.lookup(part); ok {
		return found.of(selection), found.err
	}
	return nil, c.work.request(contentKey{waiter.Namespace, part}, selection, waiter)
}

func (c *Contents) lookup(part contentPart) (foundContent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.Get(part)
}

// of returns the Content for a selection; nil when there is none.
func (f *foundContent) of(selection *Selection) *Content {
	if f.err != nil {
		return nil
	}
	content := &Content{Digest: f.digest}
	for _, i := range f.unmatched {
		content.Unmatched = append(content.Unmatched, selection.patterns[i].text)
	}
	return content
}

// Start reads what is requested until ctx ends.
func (c *Contents) Start(ctx context.Context) error {
	c.work.run(ctx, c.find)
	return nil
}

// find matches the part with the manifest of its artifact.
func (c *Contents) find(ctx context.Context, key contentKey, selection *Selection) (err error) {
	defer func() {
		if recover() != nil {
			c.store.options.Log.Error(errPanicked, "cannot read the files of an artifact", "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	if _, ok := c.lookup(key.contentPart); ok {
		return nil // It was found for another namespace meanwhile.
	}
	files, err := c.manifestOf(ctx, key.artifact)
	if err != nil {
		return err
	}
	found, err := files.content(ctx, key.artifact, selection)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Add(key.contentPart, found, int64(len(key.artifact)+len(found.digest)+8*len(found.unmatched)))
	return nil
}

// manifestOf returns the manifest of the stored artifact, which it reads if it is not in the cache.
func (c *Contents) manifestOf(ctx context.Context, artifact string) (*manifest, error) {
	found, err, _ := c.reading.Do(artifact, func() (any, error) {
		c.mu.Lock()
		kept, ok := c.manifests.Get(artifact)
		c.mu.Unlock()
		if ok {
			return kept, nil
		}
		read, err := readManifest(ctx, c.store, digest.Digest(artifact))
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.manifests.Add(artifact, read, read.size)
		return read, nil
	})
	if err != nil {
		return nil, err
	}
	return found.(*manifest), nil
}

// errManyFiles ends the reading of an archive whose manifest would be too large.
var errManyFiles = errors.New("the manifest is too large")

// manifest lists the files of an artifact.
type manifest struct {
	// files are sorted by name, each name once. If there are too many, files is nil and whole is set: then only the digest of the whole
	// artifact is compared.
	files []archive.File
	whole bool
	// size is about what the manifest costs in memory, in bytes.
	size int64
}

// readManifest reads a stored artifact.
func readManifest(ctx context.Context, store *Store, digest digest.Digest) (_ *manifest, err error) {
	file, err := store.open(digest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	m := &manifest{}
	err = archive.Contents(ctx, file, store.options.Limits, func(found archive.File) error {
		if m.size += int64(len(found.Name)) + fileOverhead; m.size > maxManifestSize {
			return errManyFiles
		}
		m.files = append(m.files, found)
		return nil
	})
	switch {
	case errors.Is(err, errManyFiles):
		return &manifest{whole: true, size: fileOverhead}, nil
	case err != nil:
		return nil, fmt.Errorf("read the files of artifact %s: %w", digest, err)
	}
	m.sort()
	return m, nil
}

// sort sorts the files by name, and leaves out those that were replaced.
func (m *manifest) sort() {
	slices.Reverse(m.files)
	slices.SortStableFunc(m.files, func(a, b archive.File) int { return strings.Compare(a.Name, b.Name) })
	// The first file of each name is kept, which was the last one in the archive.
	m.files = slices.Clip(slices.CompactFunc(m.files, func(a, b archive.File) bool { return a.Name == b.Name }))
}
