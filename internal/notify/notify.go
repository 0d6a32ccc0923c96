// Package notify wakes reconcilers: work in the background adds the objects that wait for it, and the channel source of a controller reads
// them.
package notify

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Notifier passes objects, which have only a namespace and a name, to the reader of a channel. Adding never waits. An object that is added
// again before it is read is read once, so the number of objects bounds the memory.
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

// Add adds an object for the reader of Events.
func (n *Notifier) Add(key types.NamespacedName) {
	n.mu.Lock()
	n.pending[key] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Take removes and returns all objects that were not passed on yet.
func (n *Notifier) Take() map[types.NamespacedName]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.pending
	n.pending = map[types.NamespacedName]struct{}{}
	return taken
}

// Deliver passes on what is added until ctx is done.
func (n *Notifier) Deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		for key := range n.Take() {
			object := &metav1.PartialObjectMetadata{Namespace: key.Namespace, Name: key.Name}
			select {
			case <-ctx.Done():
				return
			case n.out <- event.GenericEvent{Object: object}:
			}
		}
	}
}

// Events returns the channel with the objects that have to be reconciled. They have only a namespace and a name.
func (n *Notifier) Events() <-chan event.GenericEvent {
	return n.out
}
