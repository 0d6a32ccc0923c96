// Package namespaces knows the labels of all Namespaces. It reads nothing before somebody asks for those of one.
package namespaces

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/stack-controller/stack-controller/internal/informercache"
)

// ErrNotYet reports that the Namespaces are being read. Those who watch a Watcher hear when they are.
var ErrNotYet = errors.New("the Namespaces are being read")

var (
	errOneNamespace = errors.New("the controller watches one namespace, and reads the labels of none")
	errRefused      = errors.New("the controller may not list and watch Namespaces")
)

// retryInterval is the time to another attempt after one that failed, for example because the API server did not answer.
const retryInterval = 10 * time.Second

// refusalPatience is how long an API server may refuse the watch that it allowed before: after a restart it does not know all bindings at once.
const refusalPatience = time.Minute

// Options are what a Watcher needs: those of the manager.
type Options struct {
	Config     *rest.Config
	HTTPClient *http.Client
	Mapper     apimeta.RESTMapper
	Scheme     *runtime.Scheme
	// Log receives the reasons why Namespaces cannot be watched.
	Log logr.Logger
}

// Watcher has the labels of all Namespaces. It is a manager.Runnable. A nil Watcher is valid, and knows none.
type Watcher struct {
	Options

	mu sync.Mutex
	// running is the context of Start, begun says that the Namespaces are read, and watches counts what Start has to wait for.
	running   context.Context
	begun     bool
	watches   sync.WaitGroup
	listeners []func(namespace string)

	// retry is the time from a watch that could not begin to the next attempt.
	retry time.Duration
	// patience is how long the labels that are known count although the API server refuses the watch: one that has just started may do so.
	patience time.Duration
	// informer is set once it runs.
	informer atomic.Pointer[informer]
	state    informercache.WatchState
}

// informer is the informer with the cache that it fills.
type informer struct {
	cache.Cache
	cache.Informer
}

// New returns a Watcher that is not started.
func New(o Options) *Watcher {
	return &Watcher{Options: o, retry: retryInterval, patience: refusalPatience}
}

// Start lets Namespaces be read until the context ends.
func (w *Watcher) Start(ctx context.Context) error {
	w.mu.Lock()
	w.running = ctx
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.running = nil // nothing begins after this
	w.mu.Unlock()
	w.watches.Wait()
	return nil
}

// Labels returns the labels of a Namespace, none if there is no such Namespace. The error is ErrNotYet, or says why they cannot be known.
func (w *Watcher) Labels(namespace string) (map[string]string, error) {
	if w == nil {
		return nil, errOneNamespace
	}
	running := w.informer.Load()
	switch {
	case w.state.IsRefusedFor(w.patience), w.state.IsRefused() && (running == nil || !running.HasSynced()):
		return nil, errRefused // what the informer has may be outdated
	case running == nil || !running.HasSynced():
		w.begin()
		return nil, ErrNotYet
	}
	found := newMetadata()
	if err := running.Get(context.Background(), types.NamespacedName{Name: namespace}, found); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the Namespace %q from the cache: %w", namespace, err)
	}
	return found.Labels, nil
}

// Source returns a source for a controller: it enqueues what mapFunc returns for each Namespace that was created, has other labels or is
// gone, and for an empty name once all were read, and when the API server begins or ceases to refuse that.
func (w *Watcher) Source(mapFunc func(ctx context.Context, namespace string) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if w == nil {
			return nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listeners = append(w.listeners, func(namespace string) {
			for _, request := range mapFunc(ctx, namespace) {
				queue.Add(request)
			}
		})
		return nil
	})
}

// begin reads the Namespaces from now on.
func (w *Watcher) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun || w.running == nil || w.running.Err() != nil {
		return
	}
	w.begun = true
	ctx := w.running
	w.watches.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := w.run(ctx); err != nil {
				w.Log.Error(err, "cannot watch Namespaces")
			}
		}, w.retry)
	})
}

// run watches Namespaces until the context ends. It has a cache of its own, because no controller may wait for it: the right may be missing.
func (w *Watcher) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := true // callers only read the labels
	objects, err := informercache.NewCache(w.Config, cache.Options{
		HTTPClient: w.HTTPClient, Mapper: w.Mapper, Scheme: w.Scheme,
		DefaultTransform: func(object any) (any, error) {
			w.state.Works() // each answer has at least one Namespace
			return keepLabels(object)
		},
		DefaultUnsafeDisableDeepCopy: &shared, DefaultWatchErrorHandler: w.state.ErrorHandler(func(err error) { w.onRefused(ctx, err) }, func() {}),
	})
	if err != nil {
		return fmt.Errorf("create the cache of Namespaces: %w", err)
	}
	watched, err := objects.GetInformer(ctx, newMetadata(), cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch Namespaces: %w", err)
	}
	if _, err := watched.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initial bool) {
			if !initial {
				w.notify(object)
			}
		},
		UpdateFunc: func(before, after any) {
			if !maps.Equal(before.(client.Object).GetLabels(), after.(client.Object).GetLabels()) {
				w.notify(after)
			}
		},
		DeleteFunc: w.notify,
	}); err != nil {
		return fmt.Errorf("watch Namespaces: %w", err)
	}
	w.informer.Store(&informer{objects, watched})
	w.watches.Go(func() {
		if objects.WaitForCacheSync(ctx) {
			w.state.Works()
			w.tell("")
		}
	})
	return objects.Start(ctx)
}

func (w *Watcher) notify(object any) {
	w.state.Works()
	if name, err := toolscache.DeletionHandlingObjectToName(object); err == nil {
		w.tell(name.Name)
	}
}

func (w *Watcher) tell(namespace string) {
	w.mu.Lock()
	listeners := w.listeners
	w.mu.Unlock()
	for _, listener := range listeners {
		listener(namespace)
	}
}

// onRefused logs what to do about it. It tells everybody when the labels no longer count and, because no event may do that, when it is over; if not
// all were read yet, it does so now, and run when it is over.
func (w *Watcher) onRefused(ctx context.Context, err error) {
	w.Log.Error(err, "cannot watch Namespaces, so nothing is selected by their labels: allow list and watch")
	if running := w.informer.Load(); running == nil || !running.HasSynced() {
		w.tell("")
		return
	}
	w.watches.Go(func() {
		told := false
		_ = wait.PollUntilContextCancel(ctx, w.retry, false, func(context.Context) (over bool, err error) {
			if counts := !w.state.IsRefusedFor(w.patience); counts == told {
				told = !told
				w.tell("")
			}
			return !w.state.IsRefused(), nil
		})
	})
}

// keepLabels removes what nobody asks for.
func keepLabels(object any) (any, error) {
	if found, ok := object.(*metav1.PartialObjectMetadata); ok {
		found.ObjectMeta = metav1.ObjectMeta{Name: found.Name, UID: found.UID, ResourceVersion: found.ResourceVersion, Labels: found.Labels}
	}
	return object, nil
}

func newMetadata() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return object
}
