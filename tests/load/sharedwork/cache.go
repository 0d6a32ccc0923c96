package sharedwork

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// recorder is a cache that records the handlers of events and the index functions of all controllers. Get succeeds for every object and
// leaves it empty, and List finds none. It never has all objects, so that no worker of a controller starts.
type recorder struct {
	cache.Cache // nil; for the methods that nobody calls

	scheme *runtime.Scheme
	mu     sync.Mutex
	kinds  map[schema.GroupVersionKind]*informer
}

// informer has the handlers and index functions of one kind.
type informer struct {
	toolscache.SharedIndexInformer // nil; for the methods that nobody calls

	mu       sync.Mutex
	handlers []toolscache.ResourceEventHandler
	indexes  []client.IndexerFunc
}

func (r *recorder) informer(object client.Object) (*informer, error) {
	kind, err := apiutil.GVKForObject(object, r.scheme)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds[kind] == nil {
		r.kinds[kind] = &informer{}
	}
	return r.kinds[kind], nil
}

// handlers are how many handlers of events the controllers have, by kind.
var handlers = map[string]int{
	"Stack": 7, "Workspace": 3, "Update": 4, "Approval": 2, "Program": 2, "GitRepository": 1, "Pod": 1, "StatefulSet": 1, "Service": 1,
}

// missing returns the kinds that have other numbers of handlers.
func (r *recorder) missing() (kinds []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]int{}
	for kind, informer := range r.kinds {
		informer.mu.Lock()
		found[kind.Kind] = len(informer.handlers)
		informer.mu.Unlock()
	}
	for kind := range handlers {
		if found[kind] != handlers[kind] {
			kinds = append(kinds, fmt.Sprintf("%s (%d of %d)", kind, found[kind], handlers[kind]))
		}
	}
	return kinds
}

func (r *recorder) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return r.informer(object)
}

func (r *recorder) IndexField(_ context.Context, object client.Object, _ string, values client.IndexerFunc) error {
	found, err := r.informer(object)
	if err == nil {
		found.indexes = append(found.indexes, values)
	}
	return err
}

func (r *recorder) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (r *recorder) WaitForCacheSync(context.Context) bool { return true }

func (r *recorder) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

func (r *recorder) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func (i *informer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, handler)
	return unsynced{}, nil
}

func (i *informer) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *informer) HasSynced() bool { return true }

func (i *informer) IsStopped() bool { return false }

// unsynced is the registration of a handler that has not got all objects yet.
type unsynced struct {
	toolscache.ResourceEventHandlerRegistration
}

func (unsynced) HasSynced() bool { return false }
