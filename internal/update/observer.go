package update

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// observerBackoff is the wait between two attempts to watch an operation: 1 s at first, 30 s in the end.
func observerBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
}

// ensureObserved sees to it that the operation of a started Update is observed: one goroutine waits on the agent's stream, however
// long pulumi runs.
func (r *Reconciler) ensureObserved(update *autov1alpha1.Update) {
	observed := update.DeepCopy()
	r.jobs.ensure(ctrlclient.ObjectKeyFromObject(update), "observe "+string(update.UID), func(ctx context.Context) bool {
		return r.observeOperation(ctx, observed)
	})
}

// observeOperation wakes the Update when its operation changed, until it is final, unknown or ctx ends. A connection that is
// lost says nothing about the operation, so it is made again. It returns true when the Update is to be woken once more.
func (r *Reconciler) observeOperation(ctx context.Context, update *autov1alpha1.Update) bool {
	key := ctrlclient.ObjectKeyFromObject(update)
	log := r.log.WithValues("update", key, "uid", update.UID)
	backoff := observerBackoff()
	for ctx.Err() == nil {
		seen := proto.OperationState_OPERATION_STATE_UNSPECIFIED
		final, err := r.watchOperation(ctx, update, func(operation *proto.Operation) {
			backoff = observerBackoff()
			if !operation.GetState().Final() {
				r.jobs.wake(ctx, key, operation.GetState() != seen)
			}
			seen = operation.GetState()
		})
		if final || errors.Is(err, client.ErrNotFound) {
			return true
		}
		log.V(1).Info("the watch of the operation ended early", "error", err.Error())
		// The status should say so when an agent that was seen is gone.
		r.jobs.wake(ctx, key, seen != proto.OperationState_OPERATION_STATE_UNSPECIFIED)
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
		}
	}
	return false
}

// watchOperation watches the operation as long as the connection lasts. The Workspace is read anew each time: its agent may
// have moved.
func (r *Reconciler) watchOperation(ctx context.Context, update *autov1alpha1.Update, changed func(*proto.Operation)) (final bool, err error) {
	workspace, err := r.workspaceOf(ctx, update)
	if err != nil {
		return false, err
	}
	if workspace == nil {
		return false, runtime.ErrNoAgent
	}
	agent, err := r.runtime.Connect(ctx, workspace)
	if err != nil {
		return false, err
	}
	ended, err := agent.WatchOperation(ctx, string(update.UID), changed)
	if err != nil {
		return false, err
	}
	r.endings.keep(ctrlclient.ObjectKeyFromObject(update), ended)
	return true, nil
}
