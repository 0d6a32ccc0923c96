package stack

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"
)

// sourceWatches watches each source kind from the moment that the first Stack names it. The controller needs no Flux to
// start, and any kind that publishes an artifact can be a source.
type sourceWatches struct {
	cache      cache.Cache
	controller controller.Controller
	handler    handler.EventHandler
	predicate  predicate.Predicate

	mu        sync.Mutex
	informers map[schema.GroupKind]cache.Informer
}

// Watch implements source.Watcher.
func (w *sourceWatches) Watch(ctx context.Context, gvk schema.GroupVersionKind) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.informers[gvk.GroupKind()]; ok {
		return nil
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	informer, err := w.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("start the cache of %s: %w", gvk, err)
	}
	if err := w.controller.Watch(ctrlsource.Kind[client.Object](w.cache, object, w.handler, w.predicate)); err != nil {
		return fmt.Errorf("start the watch of %s: %w", gvk, err)
	}
	w.informers[gvk.GroupKind()] = informer
	return nil
}

// Cache implements source.Watcher.
func (w *sourceWatches) Cache(kind schema.GroupKind) client.Reader {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, ok := w.informers[kind]
	if !ok || !informer.HasSynced() || informer.IsStopped() {
		return nil
	}
	return w.cache
}
