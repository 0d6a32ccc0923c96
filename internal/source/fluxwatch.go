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
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// maxCachedText bounds each text that a cache keeps of a source, in bytes. URLs, revisions and messages are shorter.
	maxCachedText = 4 << 10
	// maxCached bounds all that a cache keeps of a source, in bytes. Tenants with Flux's edit role can write the status of a source, too.
	maxCached = 64 << 10
)

// fluxWatches watches each kind of source from the moment that the first Stack names it. So the controller starts without Flux, and any
// kind that publishes an artifact can be a source. fluxWatches implements source.Source of controller-runtime.
type fluxWatches struct {
	mu      sync.Mutex
	objects cache.Cache
	handler handler.EventHandler
	// start adds a source of events to the controller; nil before the controller has started.
	start     func(ctrlsource.Source) error
	informers map[schema.GroupKind]cache.Informer
}

// Watch implements Source.
func (f *Flux) Watch(objects cache.Cache, stacksOf func(ctx context.Context, key string) []reconcile.Request) ctrlsource.Source {
	w := &f.watches
	w.objects, w.informers = objects, map[schema.GroupKind]cache.Informer{}
	w.handler = handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		return stacksOf(ctx, fluxKey{object.GetObjectKind().GroupVersionKind().GroupKind(), client.ObjectKeyFromObject(object)}.String())
	})
	return w
}

// Start implements source.Source of controller-runtime.
func (w *fluxWatches) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start = func(kind ctrlsource.Source) error { return kind.Start(ctx, queue) }
	return nil
}

// add starts to watch the kind unless it is watched already.
func (w *fluxWatches) add(ctx context.Context, gvk schema.GroupVersionKind) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.start == nil || w.informers[gvk.GroupKind()] != nil {
		return nil
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	informer, err := w.objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("start the cache of %s: %w", gvk, err)
	}
	if err := w.start(ctrlsource.Kind[client.Object](w.objects, object, w.handler, artifactChanged)); err != nil {
		return fmt.Errorf("start the watch of %s: %w", gvk, err)
	}
	w.informers[gvk.GroupKind()] = informer
	return nil
}

// reader returns a reader for objects of the kind, nil while the kind is not watched or its cache is not synchronised.
func (w *fluxWatches) reader(kind schema.GroupKind) client.Reader {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer := w.informers[kind]
	if informer == nil || !informer.HasSynced() || informer.IsStopped() {
		return nil
	}
	return w.objects
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
