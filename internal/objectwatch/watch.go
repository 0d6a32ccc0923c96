package objectwatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/internal/informercache"
)

// brokenFor is how long a watch counts as broken after the API server refused it. An informer tries again after 30 to 60 seconds, and says
// nothing when it succeeds.
const brokenFor = 2 * time.Minute

// watch is the informer of a kind.
type watch struct {
	kind   schema.GroupVersionKind
	cancel context.CancelFunc
	// used is when somebody asked for an object of the kind last. The lock of the Watcher guards it.
	used time.Time
	// informer is set once the informer runs, and refused has when the API server refused it last, in nanoseconds; 0 is never.
	informer atomic.Pointer[informer]
	refused  atomic.Int64
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
	return running != nil && running.HasSynced() && time.Since(time.Unix(0, w.refused.Load())) > brokenFor
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
		DefaultWatchErrorHandler:     w.errorHandler(known),
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

// errorHandler notes that the API server refuses the watch, so that the objects are polled meanwhile, and logs what to do about it once. A
// kind that the cluster no longer serves is not watched any longer; the next use starts again, maybe with another version. All other errors
// are left to the default handler: the informer tries again soon.
func (w *Watcher) errorHandler(known *watch) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		switch {
		case apierrors.IsForbidden(err):
			if known.refused.Swap(time.Now().UnixNano()) == 0 {
				w.Log.Error(err, "cannot watch the objects of a kind, so they are polled: allow list and watch", "kind", Flag(known.kind.GroupKind()))
			}
		case apierrors.IsNotFound(err):
			known.cancel()
		default:
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		}
	}
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}
