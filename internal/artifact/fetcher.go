package artifact

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/stack-controller/stack-controller/internal/notify"
)

const (
	// DefaultConcurrency is how many downloads and makings run at the same time.
	DefaultConcurrency = 4

	// reportPeriod is how long the error of a download is kept for a waiter that does not ask any more.
	reportPeriod = 10 * time.Minute
)

// Fetcher is the face of a Store for reconcilers, which must not wait: it downloads in the background and tells by an
// event when a download has ended. The making of an artifact by its Maker counts as a download. It is a manager.Runnable.
type Fetcher struct {
	store       *Store
	concurrency int
	// downloads are to be made, in the order of the requests; notices are waiters to be told.
	downloads workqueue.TypedInterface[requestKey]
	notices   *notify.Notifier

	mu sync.Mutex
	// pending has the downloads that are queued or run.
	pending map[requestKey]*pendingDownload
	// failures has the errors that were not reported yet.
	failures map[failureKey]failure
}

// requestKey tells requests for different content apart.
type requestKey struct {
	flight flightKey
	// digest is the wanted one, empty when it is not known yet.
	digest digest.Digest
}

// pendingDownload is a download and who wants to hear of its end.
type pendingDownload struct {
	reference Reference
	waiters   map[types.NamespacedName]struct{}
}

type failureKey struct {
	download requestKey
	waiter   types.NamespacedName
}

type failure struct {
	err error
	at  time.Time
}

// NewFetcher makes a Fetcher that runs at most so many downloads at the same time; zero means DefaultConcurrency.
// Requests are taken at once; downloads begin when it is started.
func NewFetcher(store *Store, concurrency int) *Fetcher {
	if concurrency <= 0 {
		concurrency = DefaultConcurrency
	}
	return &Fetcher{
		store:       store,
		concurrency: concurrency,
		downloads:   workqueue.NewTyped[requestKey](),
		notices:     notify.New(),
		pending:     map[requestKey]*pendingDownload{},
		failures:    map[failureKey]failure{},
	}
}

// Events sends the waiter of a Request, as an object that has only its namespace and name, when the download that it
// waited for has ended. It is never closed.
func (f *Fetcher) Events() <-chan event.GenericEvent {
	return f.notices.Events()
}

// Request returns the digest of the artifact when it is stored, and has it downloaded or made when it is not. It does not
// wait.
//
//   - a digest: it is stored under it. It may be evicted before it is opened, when the store is very small; ask again then.
//   - no digest and no error: a download is queued or runs, and Events will send the waiter when it has ended.
//   - an error, of type *FetchError: the download that the waiter waited for failed, or the reference cannot be
//     fetched. No download is running for it. Each waiter gets the error of a download once; when to ask again, which
//     starts a new one, is its decision. What a Maker returned is in the chain of the error.
func (f *Fetcher) Request(ref Reference, waiter types.NamespacedName) (stored string, err error) {
	from, err := f.store.locate(ref)
	if err != nil {
		return "", err
	}
	key := requestKey{from.key, from.digest}
	f.mu.Lock()
	defer f.mu.Unlock()
	failed, hasFailed := f.failures[failureKey{key, waiter}]
	delete(f.failures, failureKey{key, waiter})

	if stored := f.store.Stored(ref); stored != "" {
		return stored, nil
	}
	download := f.pending[key]
	switch {
	case download != nil:
		// Somebody else asked for it again; its result counts, whatever the one before was.
	case hasFailed:
		return "", failed.err
	default:
		download = &pendingDownload{reference: ref, waiters: map[types.NamespacedName]struct{}{}}
		f.pending[key] = download
		f.downloads.Add(key)
	}
	download.waiters[waiter] = struct{}{}
	return "", nil
}

// Start downloads what is requested until ctx ends, which also cancels what is running then.
func (f *Fetcher) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for range f.concurrency {
		running.Go(func() { f.download(ctx) })
	}
	running.Go(func() { f.notices.Deliver(ctx) })
	<-ctx.Done()
	f.downloads.ShutDown()
	running.Wait()
	return nil
}

func (f *Fetcher) download(ctx context.Context) {
	for {
		key, shutdown := f.downloads.Get()
		if shutdown || ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		ref := f.pending[key].reference
		f.mu.Unlock()
		f.finish(key, f.store.Fetch(ctx, ref))
		f.downloads.Done(key)
	}
}

// finish keeps an error for each waiter, and has all of them told.
func (f *Fetcher) finish(key requestKey, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for reported, failed := range f.failures {
		if now.Sub(failed.at) > reportPeriod {
			delete(f.failures, reported)
		}
	}
	for waiter := range f.pending[key].waiters {
		if err != nil {
			f.failures[failureKey{key, waiter}] = failure{err, now}
		}
		f.notices.Add(waiter)
	}
	delete(f.pending, key)
}
