package artifact

import (
	"context"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// defaultConcurrency is how many downloads and Makers for one namespace run at the same time.
const defaultConcurrency = 4

// Fetcher is the interface of a Store for reconcilers, which must not wait: it downloads in the background, and notifies them when a
// download has ended. A call of a Maker counts as a download. It is a manager.Runnable.
type Fetcher struct {
	store     *Store
	downloads *background[requestKey, Reference]
}

// requestKey identifies a request. Requests of different namespaces are separate, so that a request does not depend on a place in the queue
// of another namespace. The store still downloads the same content only once.
type requestKey struct {
	namespace string
	flight    flightKey
	// digest is the wanted digest, empty when it is not known yet.
	digest digest.Digest
}

// NewFetcher returns a Fetcher that runs at most concurrency downloads for one namespace at the same time, and twice as many in all; zero
// means 4. Requests are queued at once; downloads begin when the Fetcher is started.
func NewFetcher(store *Store, concurrency int) *Fetcher {
	if concurrency <= 0 {
		concurrency = defaultConcurrency
	}
	return &Fetcher{store, newBackground[requestKey, Reference](concurrency, func(key requestKey) string { return key.namespace })}
}

// Events returns a channel that receives the waiter of a Request when the download that it waited for has ended. The waiter is an object
// with only a namespace and a name. The channel is never closed.
func (f *Fetcher) Events() <-chan event.GenericEvent { return f.downloads.Events() }

// Request returns the digest of the artifact if it is stored. Otherwise it requests its download, or a call of its Maker. It does not wait.
// It returns
//
//   - a digest: the artifact is stored under it. If the store is very small, the artifact may be evicted before it is opened; then call
//     Request again.
//   - no digest and no error: a download is queued or runs, and Events will send the waiter when it has ended.
//   - an error, of type *FetchError: the download that the waiter waited for failed, or the reference cannot be fetched. No download is
//     running for it. Each waiter gets the error of a download once. It decides when to call Request again, which starts a new download.
//     The error of a Maker is in the chain of the error.
func (f *Fetcher) Request(ref Reference, waiter types.NamespacedName) (stored string, err error) {
	from, err := f.store.locate(ref)
	if err != nil {
		return "", err
	}
	if stored := f.store.Stored(ref); stored != "" {
		f.downloads.forget(waiter)
		return stored, nil
	}
	return "", f.downloads.request(requestKey{waiter.Namespace, from.key, from.digest}, ref, waiter)
}

// Stored returns the digest under which the artifact is stored; empty when it is not.
func (f *Fetcher) Stored(ref Reference) string { return f.store.Stored(ref) }

// Start runs the requested downloads until ctx ends, which also cancels those that are running.
func (f *Fetcher) Start(ctx context.Context) error {
	f.downloads.run(ctx, func(ctx context.Context, _ requestKey, ref Reference) error { return f.store.Fetch(ctx, ref) })
	return nil
}
