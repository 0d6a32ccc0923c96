package source

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

const (
	// maxCachedText bounds each text that a cache keeps of a source, in bytes. URLs, revisions and messages are shorter.
	maxCachedText = 4 << 10
	// maxCached bounds all that a cache keeps of a source, in bytes. Tenants with Flux's edit role can write the status of a source, too.
	maxCached = 64 << 10
	// maxAbsent bounds how many sources that do not exist are waited for by a watch, and a namespace may have half of what others leave. Who
	// waits for more of them has to ask.
	maxAbsent = 10_000
)

// fluxWatches watches each kind of source from the moment that the first object names it. So the controller starts without Flux, and any
// kind that publishes an artifact can be a source.
type fluxWatches struct {
	mu        sync.Mutex
	listeners []fluxListener
	kinds     map[schema.GroupKind]*fluxWatch
}

// fluxListener is a controller that has started, and whose objects name sources.
type fluxListener struct {
	handler.EventHandler
	ctx   context.Context
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// fluxWatch is the watch of a kind, in the version that was found first. It has a cache of its own, because the rights may be missing, or the
// version may go away, and then only this cache has to end.
type fluxWatch struct {
	cache.Cache
	kind     schema.GroupVersionKind
	informer cache.Informer
	state    informercache.WatchState
	cancel   context.CancelFunc
	// absent has the names of sources that did not exist when somebody asked, and absentIn their number in each namespace. The lock of
	// fluxWatches guards both.
	absent   sets.Set[types.NamespacedName]
	absentIn map[string]int
}

// Watch implements Source.
func (f *Flux) Watch(_ cache.Cache, stacksOf func(ctx context.Context, key string) []reconcile.Request) ctrlsource.Source {
	events := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		return stacksOf(ctx, fluxKey{object.GetObjectKind().GroupVersionKind().GroupKind(), client.ObjectKeyFromObject(object)}.String())
	})
	return ctrlsource.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		w := &f.watches
		w.mu.Lock()
		defer w.mu.Unlock()
		listener := fluxListener{events, ctx, queue}
		w.listeners = append(w.listeners, listener)
		for _, known := range w.kinds {
			if err := listener.listen(ctx, known); err != nil {
				return err
			}
		}
		return nil
	})
}

// listen sends the changes of the sources of a kind to the controller until ctx ends.
func (l fluxListener) listen(ctx context.Context, to *fluxWatch) error {
	if err := ctrlsource.Kind[client.Object](to.Cache, to.object(""), l, artifactChanged).Start(ctx, l.queue); err != nil {
		return fmt.Errorf("start the watch of %s: %w", to.kind, err)
	}
	return nil
}

// object returns an object of the kind that has only this name.
func (w *fluxWatch) object(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(w.kind)
	object.SetName(name)
	return object
}

// watch starts to watch the kind, unless it is watched already or no controller has started.
func (f *Flux) watch(kind schema.GroupVersionKind) error {
	w := &f.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.listeners) == 0 || f.NewCache == nil || w.kinds[kind.GroupKind()] != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(w.listeners[0].ctx)
	started := &fluxWatch{kind: kind, cancel: cancel, absent: sets.New[types.NamespacedName](), absentIn: map[string]int{}}
	if err := f.start(ctx, started); err != nil {
		cancel()
		return err
	}
	if w.kinds == nil {
		w.kinds = map[schema.GroupKind]*fluxWatch{}
	}
	w.kinds[kind.GroupKind()] = started
	return nil
}

// start runs the cache of the kind until ctx ends. The caller holds the lock.
func (f *Flux) start(ctx context.Context, started *fluxWatch) (err error) {
	w := &f.watches
	options := cache.Options{
		Mapper:           f.kinds.mapperOr(f.Mapper),
		DefaultTransform: CacheTransform,
		DefaultWatchErrorHandler: started.state.ErrorHandler(func(err error) {
			f.Log.Error(err, "cannot watch the sources of a kind, so they are polled: allow list and watch", "kind", started.kind.GroupKind().String())
			w.wake(started)
		}, func() {
			w.drop(started)
			w.wake(started)
		}),
	}
	if f.Namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{f.Namespace: {}}
	}
	if started.Cache, err = f.NewCache(options); err != nil {
		return fmt.Errorf("create the cache of %s: %w", started.kind, err)
	}
	if started.informer, err = started.GetInformer(ctx, started.object(""), cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("start the cache of %s: %w", started.kind, err)
	}
	for _, listener := range w.listeners {
		if err := listener.listen(ctx, started); err != nil {
			return err
		}
	}
	go func() {
		if err := started.Start(ctx); err != nil {
			f.Log.Error(err, "cannot watch the sources of a kind", "kind", started.kind.GroupKind().String())
			w.drop(started)
		}
	}()
	return nil
}

// drop ends a watch, so that the next use of the kind starts another one, maybe of another version.
func (w *fluxWatches) drop(ended *fluxWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended.cancel()
	if kind := ended.kind.GroupKind(); w.kinds[kind] == ended {
		delete(w.kinds, kind)
	}
}

// wake wakes the objects that rely on a watch that no longer works: from now on they have to ask.
func (w *fluxWatches) wake(broken *fluxWatch) {
	if !broken.informer.HasSynced() {
		return // Nobody has relied on it.
	}
	w.mu.Lock()
	listeners, absent := slices.Clone(w.listeners), broken.absent.UnsortedList()
	w.mu.Unlock()
	known := &unstructured.UnstructuredList{}
	known.SetGroupVersionKind(broken.kind)
	// A cache of which the informer is synchronised has no error.
	_ = broken.List(context.Background(), known, client.UnsafeDisableDeepCopy)
	for _, name := range absent {
		object := broken.object(name.Name)
		object.SetNamespace(name.Namespace)
		known.Items = append(known.Items, *object)
	}
	for _, listener := range listeners {
		for i := range known.Items {
			listener.Generic(listener.ctx, event.GenericEvent{Object: &known.Items[i]}, listener.queue)
		}
	}
}

// noteAbsent remembers that somebody waits for a source that does not exist, for wake. It returns false when there are too many such names.
func (w *fluxWatches) noteAbsent(in *fluxWatch, name types.NamespacedName, absent bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch known := in.absent.Has(name); {
	case absent && !known && fairqueue.MayTake(in.absentIn[name.Namespace], maxAbsent-in.absent.Len()):
		in.absent.Insert(name)
		in.absentIn[name.Namespace]++
	case !absent && known:
		in.absent.Delete(name)
		if in.absentIn[name.Namespace]--; in.absentIn[name.Namespace] == 0 {
			delete(in.absentIn, name.Namespace)
		}
	}
	return !absent || in.absent.Has(name)
}

// working returns the watch of the kind, nil while changes of its objects are not noticed.
func (w *fluxWatches) working(kind schema.GroupKind) *fluxWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.kinds[kind]
	if known == nil || !known.informer.HasSynced() || known.informer.IsStopped() || known.state.IsRefused() {
		return nil
	}
	return known
}

// artifactChanged lets an update of a source pass if fluxChanged reports a change.
var artifactChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*unstructured.Unstructured)
		after, same := e.ObjectNew.(*unstructured.Unstructured)
		return !ok || !same || fluxChanged(before, after)
	},
}

// cachedFields are the fields of a source that this package reads.
var cachedFields = []string{
	"apiVersion", "kind",
	"metadata/namespace", "metadata/name", "metadata/uid", "metadata/resourceVersion", "metadata/generation",
	"metadata/annotations/" + informercache.ShortenedAnnotation,
	"spec/include", "spec/url", "spec/ref", "spec/verify",
	"status/artifact/url", "status/artifact/digest", "status/artifact/revision", "status/artifact/size", "status/artifact/lastUpdateTime",
	"status/artifact/metadata/" + originRevisionAnnotation, "status/artifact/metadata/" + originSourceAnnotation,
	"status/observedGeneration", "status/conditions",
}

// CacheTransform removes from an object what a cache must not keep. Sources are the only unstructured objects in the cache: only the fields
// that this package reads are kept of them, within bounds. So nothing else of an object is kept, even if the object is not a source at all.
// Of other objects everything is kept but the managed fields and the last-applied annotation of kubectl, each of which may be as large as
// the object.
func CacheTransform(object any) (any, error) {
	full, ok := object.(*unstructured.Unstructured)
	if !ok {
		if accessor, err := apimeta.Accessor(object); err == nil {
			annotations := accessor.GetAnnotations()
			delete(annotations, corev1.LastAppliedConfigAnnotation)
			accessor.SetAnnotations(annotations)
		}
		return cache.TransformStripManagedFields()(object)
	}
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	left := maxCached
	for _, field := range cachedFields {
		path := strings.Split(field, "/")
		value, found, err := unstructured.NestedFieldNoCopy(full.Object, path...)
		if err != nil || !found {
			continue
		}
		// SetNestedField fails only if a part of the path is not an object, which none of these paths has.
		_ = unstructured.SetNestedField(kept.Object, bounded(value, &left), path...)
	}
	return kept, nil
}

// bounded returns a copy of a JSON value, cut to the bounds. It subtracts the size of the copy from left.
func bounded(value any, left *int) any {
	const item = 16 // about the size of a number, or of an entry of a list or a map
	*left -= item
	switch value := value.(type) {
	case string:
		if len(value) > maxCachedText {
			value = strings.ToValidUTF8(value[:maxCachedText], "")
		}
		*left -= len(value)
		return value
	case []any:
		kept := []any{}
		for i := 0; i < len(value) && *left > 0; i++ {
			kept = append(kept, bounded(value[i], left))
		}
		return kept
	case map[string]any:
		kept := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if *left -= len(key); *left <= 0 {
				break
			}
			kept[key] = bounded(value[key], left)
		}
		return kept
	}
	return value
}
