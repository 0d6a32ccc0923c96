package artifact

import (
	"context"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// defaultConcurrency is how many downloads and makings for one namespace run at the same time.
const defaultConcurrency = 4

// Fetcher is the face of a Store for reconcilers, which must not wait: it downloads in the background and notifies them when a download
// has ended. The making of an artifact by its Maker counts as a download. It is a manager.Runnable.
type Fetcher struct {
	store     *Store
	downloads *background[requestKey, Reference]
}

// requestKey separates requests for different content, and of different namespaces: what one of them asks for is never behind
// what another one has in the queue. The store makes one download of the same content.
type requestKey struct {
	namespace string
	flight    flightKey
	// digest is the wanted one, empty when it is not known yet.
	digest digest.Digest
}

// NewFetcher makes a Fetcher that runs at most so many downloads for one namespace at the same time, and twice as many in all; zero means
// 4. Requests are taken at once; downloads begin when it is started.
func NewFetcher(store *Store, concurrency int) *Fetcher {
	if concurrency <= 0 {
		concurrency = defaultConcurrency
	}
	return &Fetcher{store, newBackground[requestKey, Reference](concurrency, func(key requestKey) string { return key.namespace })}
}

// Events sends the waiter of a Request, as an object that has only its namespace and name, when the download that it
// waited for has ended. It is never closed.
func (f *Fetcher) Events() <-chan event.GenericEvent { return f.downloads.Events() }

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
	if stored := f.store.Stored(ref); stored != "" {
		f.downloads.forget(waiter)
		return stored, nil
	}
	return "", f.downloads.request(requestKey{waiter.Namespace, from.key, from.digest}, ref, waiter)
}

// Start downloads what is requested until ctx ends, which also cancels what is running then.
func (f *Fetcher) Start(ctx context.Context) error {
	f.downloads.run(ctx, func(ctx context.Context, _ requestKey, ref Reference) error { return f.store.Fetch(ctx, ref) })
	return nil
}
