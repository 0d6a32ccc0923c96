// Package notify wakes reconcilers: whoever finds something out adds the objects that wait for it, and a controller's channel source
// reads them.
package notify

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Notifier hands objects, of which it has only namespace and name, to whoever reads the channel. Adding never waits; an object that
// is added again before it was read is read once, so that what is kept is bounded by the number of objects.
type Notifier struct {
	out  chan event.GenericEvent
	wake chan struct{}

	mu      sync.Mutex
	pending map[types.NamespacedName]struct{}
}

// New returns a Notifier without objects.
func New() *Notifier {
	return &Notifier{
		out:     make(chan event.GenericEvent),
		wake:    make(chan struct{}, 1),
		pending: map[types.NamespacedName]struct{}{},
	}
}

// Add has the object handed over.
func (n *Notifier) Add(key types.NamespacedName) {
	n.mu.Lock()
	n.pending[key] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Take removes and returns all that was not handed over yet.
func (n *Notifier) Take() map[types.NamespacedName]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.pending
	n.pending = map[types.NamespacedName]struct{}{}
	return taken
}

// Deliver hands over what is added until ctx is done.
func (n *Notifier) Deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		for key := range n.Take() {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			select {
			case <-ctx.Done():
				return
			case n.out <- event.GenericEvent{Object: object}:
			}
		}
	}
}

// Events is the channel with the objects that are to be reconciled. They have a name and a namespace only.
func (n *Notifier) Events() <-chan event.GenericEvent {
	return n.out
}
