package references

import (
	"context"
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
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	// Namespace is the only one whose objects are watched; all when it is empty.
	Namespace string
	// Log gets why objects cannot be watched.
	Log logr.Logger
}

// Watcher watches the metadata of Secrets and ConfigMaps: the API server never sends what is in them. What it keeps of each is its name,
// UID and resource version. It is a manager.Runnable. A nil Watcher is valid and watches nothing.
type Watcher struct {
	cache     cache.Cache
	selector  labels.Selector
	informers map[Kind]cache.Informer
	listeners []func(kind, namespace, name string)
	synced    chan struct{} // closed when all objects are known
}

// NewWatcher returns a Watcher that starts to watch when it is started.
func NewWatcher(ctx context.Context, o Options) (*Watcher, error) {
	shared := true // what the cache hands out is only read
	options := cache.Options{
		HTTPClient:                   o.HTTPClient,
		Mapper:                       o.Mapper,
		Scheme:                       o.Scheme,
		DefaultLabelSelector:         o.Selector,
		DefaultTransform:             keepVersion,
		DefaultUnsafeDisableDeepCopy: &shared,
		DefaultWatchErrorHandler:     errorHandler(o.Log),
	}
	if o.Namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	objects, err := cache.New(o.Config, options)
	if err != nil {
		return nil, fmt.Errorf("create the cache of the metadata of Secrets and ConfigMaps: %w", err)
	}
	w := &Watcher{cache: objects, selector: o.Selector, informers: map[Kind]cache.Informer{}, synced: make(chan struct{})}
	for _, kind := range []Kind{Secret, ConfigMap} {
		if w.informers[kind], err = objects.GetInformer(ctx, metadataOf(kind), cache.BlockUntilSynced(false)); err != nil {
			return nil, fmt.Errorf("watch the metadata of %ss: %w", kind, err)
		}
	}
	return w, nil
}

// Notify makes the Watcher call the function for each object that it finds, and whenever one changed or is gone. It must be called before
// Start, and the function must not block.
func (w *Watcher) Notify(changed func(kind, namespace, name string)) {
	if w != nil {
		w.listeners = append(w.listeners, changed)
	}
}

// Start watches until the context ends. Nothing waits for it: as long as the API server does not let objects be watched, none are.
func (w *Watcher) Start(ctx context.Context) error {
	go func() {
		if !w.cache.WaitForCacheSync(ctx) {
			return
		}
		close(w.synced)
		for _, listener := range w.listeners {
			w.listen(ctx, listener, true)
		}
	}()
	return w.cache.Start(ctx)
}

// Versions returns the versions of those of the objects that exist and are watched, in the order of the keys. There are none before all
// objects are known; each is then told to everybody who watches.
func (w *Watcher) Versions(ctx context.Context, keys []Key) ([]Version, error) {
	if w == nil || !w.isSynced() {
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

// Watches tells whether an object with these labels is watched.
func (w *Watcher) Watches(object metav1.Object) bool {
	return w != nil && w.selector.Matches(labels.Set(object.GetLabels()))
}

func (w *Watcher) isSynced() bool {
	select {
	case <-w.synced:
		return true
	default:
		return false
	}
}

// listen calls the function for every object there is, and for every change from then on.
func (w *Watcher) listen(ctx context.Context, changed func(kind, namespace, name string), deletions bool) {
	for kind, informer := range w.informers {
		tell := func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if object, ok := object.(client.Object); ok {
				changed(string(kind), object.GetNamespace(), object.GetName())
			}
		}
		handler := toolscache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(before, after any) {
			if resourceVersion(before) != resourceVersion(after) {
				tell(after)
			}
		}}
		if deletions {
			handler.DeleteFunc = tell
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return // the informer was stopped
		}
		context.AfterFunc(ctx, func() { _ = informer.RemoveEventHandler(registration) })
	}
}

func resourceVersion(object any) string {
	if object, ok := object.(client.Object); ok {
		return object.GetResourceVersion()
	}
	return ""
}

func metadataOf(kind Kind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(string(kind)))
	return object
}

// keepVersion drops everything from an object but what tells its version. Annotations of Secrets can hold secret values: kubectl
// apply leaves a copy of the whole object in one.
func keepVersion(object any) (any, error) {
	full, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: full.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: full.Namespace, Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion,
	}}, nil
}

// errorHandler says what to do when the controller may not watch, and leaves the rest to the default.
func errorHandler(log logr.Logger) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			log.Error(err, "cannot watch Secrets and ConfigMaps, so their changes cause no update: allow list and watch, or set --watch-configs-label-selector=none")
			return
		}
		toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
	}
}
