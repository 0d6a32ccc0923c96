package artifact

import (
	"container/list"
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/stack-controller/stack-controller/internal/notify"
)

const (
	// manifestReaders is how many artifacts are read at the same time.
	manifestReaders = 2
	// maxManifests bounds the memory of all manifests that are kept, in bytes.
	maxManifests = 2 * maxManifestSize
)

// Content is what an artifact has of a Selection.
type Content struct {
	// Digest, "sha256:…", is the same for two artifacts when all selected files are.
	Digest string
	// Unmatched are the selected paths that match no file.
	Unmatched []string
	// Whole says that the artifact has too many files to tell them apart, so that the digest is that of all of it.
	Whole bool
}

// Contents tells which parts of stored artifacts are the same. It reads each artifact once, in the background, however many
// ask for parts of it, and keeps what it found in bounded memory. It is a manager.Runnable.
type Contents struct {
	store *Store
	// unread are the artifacts to read; notices are waiters to be told.
	unread  workqueue.TypedInterface[string]
	notices *notify.Notifier

	mu sync.Mutex
	// waiting has the artifacts that are queued or read, and who wants to hear of it.
	waiting map[string]map[types.NamespacedName]struct{}
	// failures has the errors of the last readings that nobody was told of yet.
	failures map[string]failure
	known    map[string]*list.Element
	// recent has the manifests that are kept, the most recently used first.
	recent *list.List
	size   int64
}

// namedManifest is an element of Contents.recent.
type namedManifest struct {
	artifact string
	*manifest
}

// NewContents returns the Contents of a Store. Requests are taken at once; reading begins when it is started.
func NewContents(store *Store) *Contents {
	return &Contents{
		store:    store,
		unread:   workqueue.NewTyped[string](),
		notices:  notify.New(),
		waiting:  map[string]map[types.NamespacedName]struct{}{},
		failures: map[string]failure{},
		known:    map[string]*list.Element{},
		recent:   list.New(),
	}
}

// Events sends the waiter of a Request, as an object that has only its namespace and name, when the artifact was read. It is
// never closed.
func (c *Contents) Events() <-chan event.GenericEvent { return c.notices.Events() }

// Request returns what the stored artifact has of the selection; all of it without one. It does not wait: nil without an
// error means that the artifact is being read, and that Events will send the waiter. The error wraps ErrNotStored when the
// artifact has to be fetched first. After an error the next request tries again.
func (c *Contents) Request(artifact string, selection *Selection, waiter types.NamespacedName) (*Content, error) {
	if selection == nil {
		return &Content{Digest: artifact}, nil
	}
	found, err := c.manifest(artifact, waiter)
	if found == nil || err != nil {
		return nil, err
	}
	if found.whole {
		return &Content{Digest: artifact, Whole: true}, nil
	}
	content := &Content{}
	content.Digest, content.Unmatched = found.digest(selection)
	return content, nil
}

// manifest returns the manifest that is kept, or has it read.
func (c *Contents) manifest(artifact string, waiter types.NamespacedName) (*manifest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.known[artifact]; ok {
		c.recent.MoveToFront(element)
		return element.Value.(namedManifest).manifest, nil
	}
	if failed, ok := c.failures[artifact]; ok {
		delete(c.failures, artifact)
		return nil, failed.err
	}
	if c.waiting[artifact] == nil {
		c.waiting[artifact] = map[types.NamespacedName]struct{}{}
		c.unread.Add(artifact)
	}
	c.waiting[artifact][waiter] = struct{}{}
	return nil, nil
}

// Start reads what is requested until ctx ends.
func (c *Contents) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for range manifestReaders {
		running.Go(func() { c.read(ctx) })
	}
	running.Go(func() { c.notices.Deliver(ctx) })
	<-ctx.Done()
	c.unread.ShutDown()
	running.Wait()
	return nil
}

func (c *Contents) read(ctx context.Context) {
	for {
		artifact, shutdown := c.unread.Get()
		if shutdown || ctx.Err() != nil {
			return
		}
		found, err := readManifest(ctx, c.store, artifact)
		c.finish(artifact, found, err)
		c.unread.Done(artifact)
	}
}

// finish keeps what was found, and has the waiters told.
func (c *Contents) finish(artifact string, found *manifest, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	// An error that nobody asks for any more must not stay for ever.
	maps.DeleteFunc(c.failures, func(_ string, failed failure) bool { return now.Sub(failed.at) > reportPeriod })
	if err != nil {
		c.failures[artifact] = failure{err, now}
	} else {
		c.keep(namedManifest{artifact, found})
	}
	for waiter := range c.waiting[artifact] {
		c.notices.Add(waiter)
	}
	delete(c.waiting, artifact)
}

// keep makes room for the manifest. Callers hold the lock.
func (c *Contents) keep(found namedManifest) {
	c.known[found.artifact] = c.recent.PushFront(found)
	c.size += found.size
	for c.size > maxManifests {
		oldest := c.recent.Remove(c.recent.Back()).(namedManifest)
		delete(c.known, oldest.artifact)
		c.size -= oldest.size
	}
}
