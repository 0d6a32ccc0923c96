// Package objectwatch reads objects of kinds that are configured when the controller starts, and finds out when they change. It is for
// objects of others, such as Kustomizations and HelmReleases, that Stacks may depend on.
//
// A change is found by an informer of the metadata, of which only the names and versions are kept; there is one for each kind, and only
// while somebody asks for objects of the kind. The object itself is read when somebody asks for it, at most once in a second for all who
// ask. So an object that nobody waits for costs no request, and the memory does not grow with the content of the objects of others.
package objectwatch

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/stack-controller/stack-controller/internal/bytecache"
	"github.com/stack-controller/stack-controller/internal/discovery"
)

// +kubebuilder:rbac:groups=kustomize.toolkit.fluxcd.io,resources=kustomizations,verbs=get;list;watch
// +kubebuilder:rbac:groups=helm.toolkit.fluxcd.io,resources=helmreleases,verbs=get;list;watch

const (
	// DefaultIdle is how long a kind is watched after somebody asked for an object of it for the last time.
	DefaultIdle = 10 * time.Minute
	// shareFor is how long an answer of the API server is used for all who ask for the object.
	shareFor = time.Second
	// trustFor is how long an answer is used whose object has not changed since, as the informer says.
	trustFor = 5 * time.Minute
	// maxAnswers bounds the memory of all answers, in bytes.
	maxAnswers = 16 << 20
)

// Options are what a Watcher needs.
type Options struct {
	// Kinds are the kinds that are read; see ParseKinds.
	Kinds []schema.GroupKind
	// Config, HTTPClient, Mapper and Scheme are those of the manager.
	Config     *rest.Config
	HTTPClient *http.Client
	Mapper     apimeta.RESTMapper
	Scheme     *runtime.Scheme
	// APIReader reads objects from the API server.
	APIReader client.Reader
	// Namespace is the only namespace whose objects are watched; all namespaces when it is empty. Objects elsewhere are read all the same, if
	// the controller may.
	Namespace string
	// Idle is how long a kind is watched after the last use; 0 means DefaultIdle.
	Idle time.Duration
	// Log receives the reasons why objects cannot be watched.
	Log logr.Logger
}

// Key names an object.
type Key struct {
	schema.GroupVersionKind
	Namespace, Name string
}

// Name names an object without a version of its kind: its change is one for all who named it in any version.
type Name struct {
	schema.GroupKind
	Namespace, Name string
}

// String is a value for an index. A slash is in no part of a name.
func (n Name) String() string { return n.Group + "/" + n.Kind + "/" + n.Namespace + "/" + n.Name }

func (k Key) name() Name { return Name{k.GroupKind(), k.Namespace, k.Name} }

// Watcher reads and watches objects. It is a manager.Runnable. A nil Watcher is valid, and reads no kind.
type Watcher struct {
	Options

	mu sync.Mutex
	// running is the context of Start, and watches counts what it has to wait for.
	running context.Context
	watches sync.WaitGroup
	// kinds has the kinds that are being watched.
	kinds     map[schema.GroupKind]*watch
	listeners []func(Name)
	// answers has what the API server answered last, and reading the requests that it has not answered yet.
	answers *bytecache.Cache[Key, *answer]
	reading map[Key]*answer
	// missing has when the cluster last had no such kind.
	missing map[schema.GroupVersionKind]time.Time
	// served has the kinds that the cluster has, and limits how often it is asked for others.
	served sets.Set[schema.GroupVersionKind]
	limits discovery.Limits
	asking sync.Mutex
}

// New returns a Watcher. It watches nothing until it is started and somebody asks for an object.
func New(o Options) *Watcher {
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	return &Watcher{
		Options: o, kinds: map[schema.GroupKind]*watch{}, answers: bytecache.New[Key, *answer](maxAnswers), reading: map[Key]*answer{},
		missing: map[schema.GroupVersionKind]time.Time{}, served: sets.New[schema.GroupVersionKind](),
	}
}

// Allows reports whether objects of the kind are read.
func (w *Watcher) Allows(kind schema.GroupKind) bool {
	return w != nil && slices.Contains(w.Kinds, kind)
}

// Start lets kinds be watched until the context ends.
func (w *Watcher) Start(ctx context.Context) error {
	w.mu.Lock()
	w.running = ctx
	w.mu.Unlock()
	ticker := time.NewTicker(max(w.Idle/10, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			// No watch starts after this: see use.
			w.mu.Lock()
			w.running = nil
			w.mu.Unlock()
			w.watches.Wait()
			return nil
		case <-ticker.C:
			w.stopIdle()
		}
	}
}

// Source returns a source for a controller: it enqueues what mapFunc returns for each object that is found, has changed or is gone.
func (w *Watcher) Source(mapFunc func(context.Context, Name) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if w == nil {
			return nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listeners = append(w.listeners, func(name Name) {
			for _, request := range mapFunc(ctx, name) {
				queue.Add(request)
			}
		})
		return nil
	})
}

// Watched returns the kinds that are being watched.
func (w *Watcher) Watched() []schema.GroupKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	var kinds []schema.GroupKind
	for kind := range w.kinds {
		kinds = append(kinds, kind)
	}
	return kinds
}

// use keeps the kind watched, and starts to watch it if it is not. It returns nil when the kind cannot be watched yet.
func (w *Watcher) use(kind schema.GroupVersionKind) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil || w.running.Err() != nil {
		return nil
	}
	known := w.kinds[kind.GroupKind()]
	if known == nil {
		ctx, cancel := context.WithCancel(w.running)
		known = &watch{kind: kind, cancel: cancel}
		w.kinds[kind.GroupKind()] = known
		w.watches.Go(func() { w.run(ctx, known) })
	}
	known.used = time.Now()
	return known
}

// stopIdle stops to watch the kinds that nobody used for a while.
func (w *Watcher) stopIdle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.kinds {
		if time.Since(known.used) > w.Idle {
			w.stop(known)
		}
	}
}

// stop stops the watch. The caller holds the lock.
func (w *Watcher) stop(known *watch) {
	known.cancel()
	if w.kinds[known.kind.GroupKind()] == known {
		delete(w.kinds, known.kind.GroupKind())
	}
}

// changed notifies the listeners that there is another version of the object, or none any longer.
func (w *Watcher) changed(name Name) {
	w.mu.Lock()
	listeners := slices.Clone(w.listeners)
	w.mu.Unlock()
	for _, notify := range listeners {
		notify(name)
	}
}
