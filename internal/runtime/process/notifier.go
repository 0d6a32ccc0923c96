package process

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// notifier hands workspaces to whoever reads the channel. Adding never waits; a workspace that is added again before it
// was read is read once, so that what is kept is bounded by the number of workspaces.
type notifier struct {
	out  chan event.GenericEvent
	wake chan struct{}

	mu      sync.Mutex
	pending map[types.NamespacedName]struct{}
}

func newNotifier() *notifier {
	return &notifier{
		out:     make(chan event.GenericEvent),
		wake:    make(chan struct{}, 1),
		pending: map[types.NamespacedName]struct{}{},
	}
}

func (n *notifier) add(key types.NamespacedName) {
	n.mu.Lock()
	n.pending[key] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// take removes and returns all that is pending.
func (n *notifier) take() map[types.NamespacedName]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.pending
	n.pending = map[types.NamespacedName]struct{}{}
	return taken
}

// deliver hands over what is added until ctx is done.
func (n *notifier) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		for key := range n.take() {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			select {
			case <-ctx.Done():
				return
			case n.out <- event.GenericEvent{Object: object}:
			}
		}
	}
}
