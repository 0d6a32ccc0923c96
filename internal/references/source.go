package references

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source returns a source for a controller: it enqueues what the function returns for each object that the Watcher finds, and for
// each that changed. That one is gone is told to nobody: it brings no new value. The controller does not wait for the objects to be known.
func (w *Watcher) Source(usersOf func(context.Context, Key) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if w == nil {
			return nil
		}
		go func() {
			select {
			case <-ctx.Done():
				return
			case <-w.synced:
			}
			w.listen(ctx, func(kind, namespace, name string) {
				for _, request := range usersOf(ctx, Key{Kind: Kind(kind), Namespace: namespace, Name: name}) {
					queue.Add(request)
				}
			}, false)
		}()
		return nil
	})
}
