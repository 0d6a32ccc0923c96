package references

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/stack-controller/stack-controller/internal/informercache"
)

// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=list;watch

// Options are what a Watcher needs.
type Options struct {
	// Config, HTTPClient, Mapper and Scheme are those of the manager.
	Config     *rest.Config
	HTTPClient *http.Client
	Mapper     apimeta.RESTMapper
	Scheme     *runtime.Scheme
	// Selector selects the objects by their labels. The API server sends no others.
	Selector labels.Selector
	// Namespace is the only namespace whose objects are watched; all namespaces when it is empty.
	Namespace string
	// Log receives the reasons why objects cannot be watched.
	Log logr.Logger
}

// Watcher watches the metadata of Secrets and ConfigMaps: the API server never sends their contents. Of each object it keeps the name, UID
// and resource version. It is a manager.Runnable. A nil Watcher is valid and watches nothing.
//
// The Watcher does not use WatchesMetadata of controller-runtime, which takes the cache of the manager. Every controller waits for that
// cache, and none would start without the right to list Secrets. The cache of the Watcher may stay empty forever; its objects are announced
// once it has all of them.
type Watcher struct {
	cache     cache.Cache
	selector  labels.Selector
	informers map[Kind]cache.Informer
	listeners []func(Key)
	states    map[Kind]*informercache.WatchState
}

// NewWatcher returns a Watcher that starts to watch when it is started.
func NewWatcher(ctx context.Context, o Options) (*Watcher, error) {
	w := &Watcher{selector: o.Selector, informers: map[Kind]cache.Informer{}, states: map[Kind]*informercache.WatchState{Secret: {}, ConfigMap: {}}}
	shared := true // callers only read the objects from the cache
	options := cache.Options{
		HTTPClient:                   o.HTTPClient,
		Mapper:                       o.Mapper,
		Scheme:                       o.Scheme,
		DefaultLabelSelector:         o.Selector,
		DefaultTransform:             informercache.KeepVersion,
		DefaultUnsafeDisableDeepCopy: &shared,
		DefaultWatchErrorHandler:     w.errorHandler(o.Log),
	}
	if o.Namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	objects, err := informercache.NewCache(o.Config, options)
	if err != nil {
		return nil, fmt.Errorf("create the cache of the metadata of Secrets and ConfigMaps: %w", err)
	}
	w.cache = objects
	for _, kind := range []Kind{Secret, ConfigMap} {
		if w.informers[kind], err = objects.GetInformer(ctx, metadataOf(kind), cache.BlockUntilSynced(false)); err != nil {
			return nil, fmt.Errorf("watch the metadata of %ss: %w", kind, err)
		}
	}
	return w, nil
}

// Notify makes the Watcher call the function for each object that it finds, and whenever an object changed or is gone. Notify must be
// called before Start, and the function must not block.
func (w *Watcher) Notify(changed func(Key)) {
	if w != nil {
		w.listeners = append(w.listeners, changed)
	}
}

// Start watches until the context ends. No controller waits for it: as long as the API server does not allow the watches, nothing is
// watched.
func (w *Watcher) Start(ctx context.Context) error {
	for _, listener := range w.listeners {
		go w.listen(ctx, listener, true)
	}
	return w.cache.Start(ctx)
}

// Source returns a source for a controller: it enqueues what mapFunc returns for each object that the Watcher finds, and for each object
// that changed. An object that is gone enqueues nothing, because it brings no new value. The controller does not wait until the objects are
// known.
func (w *Watcher) Source(mapFunc func(context.Context, Key) []reconcile.Request) source.Source {
	return w.source(mapFunc, false)
}

// SourceWithDeletions is as Source, and also enqueues what mapFunc returns for an object that is gone.
func (w *Watcher) SourceWithDeletions(mapFunc func(context.Context, Key) []reconcile.Request) source.Source {
	return w.source(mapFunc, true)
}

func (w *Watcher) source(mapFunc func(context.Context, Key) []reconcile.Request, deletions bool) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if w == nil {
			return nil
		}
		go w.listen(ctx, func(key Key) {
			for _, request := range mapFunc(ctx, key) {
				queue.Add(request)
			}
		}, deletions)
		return nil
	})
}

// Versions returns the versions of the objects that exist and are watched, in the order of the keys. It returns none until the Watcher
// knows all objects; the Watcher then notifies all listeners about each of them. It also returns none while the API server refuses the watches,
// because what the Watcher knows may be outdated.
func (w *Watcher) Versions(ctx context.Context, keys []Key) ([]Version, error) {
	if !w.works() {
		return nil, nil
	}
	var versions []Version
	for _, key := range keys {
		object := metadataOf(key.Kind)
		err := w.cache.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, object)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the version of %s: %w", key, err)
		}
		versions = append(versions, VersionOf(key.Kind, object))
	}
	return versions, nil
}

// works reports whether the Watcher knows the versions of all objects.
func (w *Watcher) works() bool {
	if w == nil {
		return false
	}
	for kind, informer := range w.informers {
		if !informer.HasSynced() || w.states[kind].IsRefused() {
			return false
		}
	}
	return true
}

// Version returns the id of the version of an object with these labels; empty when there is no such object. It is not known when the object
// is not watched, until the Watcher knows all objects, or while the API server refuses the watches.
func (w *Watcher) Version(ctx context.Context, key Key, labelled map[string]string) (known bool, id string, err error) {
	if !w.works() || !w.selector.Matches(labels.Set(labelled)) {
		return false, "", nil
	}
	versions, err := w.Versions(ctx, []Key{key})
	if err != nil || len(versions) == 0 {
		return err == nil, "", err
	}
	return true, versions[0].ID, nil
}

// Watches reports whether an object with these labels is watched.
func (w *Watcher) Watches(object metav1.Object) bool {
	return w != nil && w.selector.Matches(labels.Set(object.GetLabels()))
}

// listen calls the function for every object as soon as all objects are known, and for every change from then on.
func (w *Watcher) listen(ctx context.Context, changed func(Key), deletions bool) {
	if !w.cache.WaitForCacheSync(ctx) {
		return
	}
	for kind, informer := range w.informers {
		w.states[kind].Works()
		notify := func(object any) {
			w.states[kind].Works()
			if name, err := toolscache.DeletionHandlingObjectToName(object); err == nil {
				changed(Key{kind, name.Namespace, name.Name})
			}
		}
		handler := toolscache.ResourceEventHandlerFuncs{AddFunc: notify, UpdateFunc: func(before, after any) {
			if before.(client.Object).GetResourceVersion() != after.(client.Object).GetResourceVersion() {
				notify(after)
			}
		}}
		if deletions {
			handler.DeleteFunc = notify
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return // the informer was stopped
		}
		context.AfterFunc(ctx, func() { _ = informer.RemoveEventHandler(registration) })
	}
}

func metadataOf(kind Kind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(string(kind)))
	return object
}

// errorHandler handles the errors of both informers. It logs once what to do when the controller may not watch one of the kinds.
func (w *Watcher) errorHandler(log logr.Logger) toolscache.WatchErrorHandlerWithContext {
	refused := func(err error) {
		log.Error(err, "cannot watch Secrets and ConfigMaps, so their changes cause no update: allow list and watch, or set --watch-configs-label-selector=none")
	}
	ofSecrets, ofConfigMaps := w.states[Secret].ErrorHandler(refused, func() {}), w.states[ConfigMap].ErrorHandler(refused, func() {})
	return func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "configmaps" {
			ofConfigMaps(ctx, reflector, err)
			return
		}
		ofSecrets(ctx, reflector, err)
	}
}
