package update

import (
	"context"
	"errors"
	"fmt"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

const (
	// unpackTimeout is how long an agent may take with an artifact in addition to the time for receiving it.
	unpackTimeout = time.Minute
	// deliveryTimeout bounds one delivery, verification and unpacking included, however large the artifact is.
	deliveryTimeout = 5 * time.Minute
)

// deliver sends the artifact that the agent asked for in the background: a large artifact or a slow agent does not block a worker.
func (r *Reconciler) deliver(o *observation) {
	workspace, wanted := o.workspace.DeepCopy(), o.artifact
	r.background.ensure(o.update, "deliver "+wanted.digest, func(ctx context.Context, note func(func(*task))) {
		err := r.push(ctx, workspace, wanted)
		// An artifact that is not stored was evicted after it was observed; the next reconcile fetches it again.
		if !errors.Is(err, artifact.ErrNotStored) {
			note(func(task *task) { task.delivery = delivery{digest: wanted.digest, err: err} })
		}
	})
}

// push delivers one artifact when a slot is free. If the artifact has a URL, the agent fetches it, which needs no slot.
func (r *Reconciler) push(ctx context.Context, workspace *autov1alpha1.Workspace, wanted artifactView) (err error) {
	if wanted.url != "" {
		ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
		defer cancel()
		agent, err := r.Runtime.Wake(ctx, workspace)
		if err != nil {
			return err
		}
		return agent.FetchSource(ctx, wanted.digest, wanted.url)
	}
	release, err := r.background.slots.Acquire(ctx, workspace.Namespace)
	if err != nil {
		return err
	}
	defer release()
	file, err := r.Store.Open(wanted.reference)
	if err != nil {
		return fmt.Errorf("open artifact %s: %w", wanted.digest, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, deliveryTime(file.Size))
	defer cancel()
	agent, err := r.Runtime.Wake(ctx, workspace)
	if err != nil {
		return err
	}
	content := throughput.NewReader(file)
	ctx, stop := throughput.Require(ctx, r.background.window, 0, content.Transferred)
	defer stop()
	err = agent.PushSource(ctx, wanted.digest, file.Size, content)
	if slow := (*throughput.Error)(nil); errors.As(context.Cause(ctx), &slow) {
		return fmt.Errorf("push source %s: %w", wanted.digest, slow)
	}
	return err
}

// deliveryTime is how long the delivery of so many bytes may take.
func deliveryTime(size int64) time.Duration {
	return min(deliveryTimeout, unpackTimeout+time.Duration(size/throughput.Minimum)*time.Second)
}
