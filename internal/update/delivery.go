package update

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/artifact"
)

const (
	// maxDeliveries is how many artifacts are on their way to agents at the same time.
	maxDeliveries = 16
	// deliveryTimeout bounds one delivery, verification and unpacking included.
	deliveryTimeout = 5 * time.Minute
)

// deliveries bring artifacts from the store to agents in the background: a large one, or a slow agent, does not hold up a
// worker.
type deliveries struct {
	// slots bounds how many run at once.
	slots chan struct{}

	mu sync.Mutex
	// failures has the errors of the deliveries that ended and were not reported yet.
	failures map[types.NamespacedName]deliveryFailure
}

// deliveryFailure is the error of a delivery for the Update with the UID.
type deliveryFailure struct {
	uid types.UID
	err error
}

func newDeliveries() *deliveries {
	return &deliveries{slots: make(chan struct{}, maxDeliveries), failures: map[types.NamespacedName]deliveryFailure{}}
}

// fail keeps the error until it is taken.
func (d *deliveries) fail(key types.NamespacedName, uid types.UID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures[key] = deliveryFailure{uid: uid, err: err}
}

// takeFailure returns the error of the last delivery for the Update, once; nil when there is none.
func (d *deliveries) takeFailure(key types.NamespacedName, uid types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := d.failures[key]
	delete(d.failures, key)
	if failed.uid != uid {
		return nil
	}
	return failed.err
}

// drop forgets the error of an Update that is gone.
func (d *deliveries) drop(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.failures, key)
}

// deliver starts the delivery of the artifact that the agent asked for, and decides what is shown meanwhile. A delivery
// that failed is reported first; the next one starts when its error was waited out.
func (r *Reconciler) deliver(o *observation) decision {
	key, uid := ctrlclient.ObjectKeyFromObject(o.update), o.update.UID
	if err := r.deliveries.takeFailure(key, uid); err != nil {
		return decideOnDeliveryError(o, err)
	}
	digest := o.artifact.digest
	workspace := o.workspace.DeepCopy()
	r.jobs.ensure(key, "deliver "+digest+" for "+string(uid), func(ctx context.Context) bool {
		if err := r.push(ctx, workspace, digest); err != nil && ctx.Err() == nil {
			r.deliveries.fail(key, uid, err)
		}
		return true
	})
	return delivering(o)
}

// push delivers one artifact, when a slot is free.
func (r *Reconciler) push(ctx context.Context, workspace *autov1alpha1.Workspace, digest string) (err error) {
	select {
	case r.deliveries.slots <- struct{}{}:
		defer func() { <-r.deliveries.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	agent, err := r.runtime.Connect(ctx, workspace)
	if err != nil {
		return err
	}
	file, err := r.store.Open(digest)
	if errors.Is(err, artifact.ErrNotStored) {
		// It was evicted since it was looked for; the next look fetches it again.
		return nil
	}
	if err != nil {
		return fmt.Errorf("open artifact %s: %w", digest, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return agent.PushSource(ctx, digest, file.Size, file)
}
