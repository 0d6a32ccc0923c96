package objectwatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/internal/informercache"
)

// watch is the informer of a kind.
type watch struct {
	kind   schema.GroupVersionKind
	cancel context.CancelFunc
	// used is when somebody asked for an object of the kind last. The lock of the Watcher guards it.
	used time.Time
	// informer is set once the informer runs.
	informer atomic.Pointer[informer]
	state    informercache.WatchState
}

// informer is the informer with the cache that it fills.
type informer struct {
	cache.Cache
	cache.Informer
}

// works reports whether changes of objects of the kind are noticed now.
func (w *watch) works() bool {
	if w == nil {
		return false
	}
	running := w.informer.Load()
	return running != nil && running.HasSynced() && !w.state.IsRefused()
}

// version returns the version of an object, empty when there is none. It is not known when the watch does not work.
func (w *watch) version(ctx context.Context, key Key) (version string, known bool) {
	if !w.works() {
		return "", false
	}
	object := metadataOf(w.kind)
	err := w.informer.Load().Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, object)
	return object.ResourceVersion, client.IgnoreNotFound(err) == nil
}

// run watches the kind until the context ends. It has a cache of its own, because no controller may wait for it: the rights may be missing.
func (w *Watcher) run(ctx context.Context, known *watch) {
	if err := w.runInformer(ctx, known); err != nil {
		w.Log.Error(err, "cannot watch the objects of a kind")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop(known)
}

func (w *Watcher) runInformer(ctx context.Context, known *watch) error {
	shared := true // callers only read the objects from the cache
	options := cache.Options{
		HTTPClient:                   w.HTTPClient,
		Mapper:                       w.Mapper,
		Scheme:                       w.Scheme,
		DefaultTransform:             informercache.KeepVersion,
		DefaultUnsafeDisableDeepCopy: &shared,
		// The next use of a kind that is gone starts again, maybe with another version.
		DefaultWatchErrorHandler: known.state.ErrorHandler(func(err error) {
			w.Log.Error(err, "cannot watch the objects of a kind, so they are polled: allow list and watch", "kind", Flag(known.kind.GroupKind()))
		}, known.cancel),
	}
	if w.Namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{w.Namespace: {}}
	}
	objects, err := informercache.NewCache(w.Config, options)
	if err != nil {
		return fmt.Errorf("create the cache of the metadata of %s: %w", known.kind, err)
	}
	watched, err := objects.GetInformer(ctx, metadataOf(known.kind), cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the metadata of %s: %w", known.kind, err)
	}
	notify := func(object any) {
		if name, err := toolscache.DeletionHandlingObjectToName(object); err == nil {
			w.changed(Name{known.kind.GroupKind(), name.Namespace, name.Name})
		}
	}
	if _, err := watched.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(before, after any) {
		if before.(client.Object).GetResourceVersion() != after.(client.Object).GetResourceVersion() {
			notify(after)
		}
	}}); err != nil {
		return fmt.Errorf("watch the metadata of %s: %w", known.kind, err)
	}
	known.informer.Store(&informer{objects, watched})
	return objects.Start(ctx)
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}
