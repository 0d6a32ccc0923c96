package update

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

const (
	// observedPerSecond and observedAtOnce bound how fast the controller reads changes from an agent. An agent sends at most five per second.
	// After the first few, an agent that sends more is slowed down to that: it may belong to a tenant who wants to keep the controller busy.
	observedPerSecond = 5
	observedAtOnce    = 10
	// urgentInterval is how often the end of a watch may bring its Update back at once, after the first urgentBurst times. What is not urgent
	// waits for the progress interval.
	urgentInterval = 10 * time.Second
	urgentBurst    = 10
	// steadyTime is how long a watch has to last for the next attempt to be made soon.
	steadyTime = time.Minute
)

// ensureWatched makes sure that the operation of a started Update is watched: one goroutine waits on the agent's stream, however
// long pulumi runs, until the Update is finalized.
func (r *Reconciler) ensureWatched(update *autov1alpha1.Update) {
	watched := update.DeepCopy()
	r.background.ensure(watched, "watch", func(ctx context.Context, note func(func(*task))) {
		r.watchOperation(ctx, watched, func(ended *agentpb.Operation) { note(func(task *task) { task.ended = ended }) })
	})
}

// watchOperation wakes the Update when its operation changed or has ended. A lost connection says nothing about the operation, so the
// controller connects again. A tenant controls what the agent reports and how often a report ends, so neither brings the Update back faster
// than the limits allow.
func (r *Reconciler) watchOperation(ctx context.Context, update *autov1alpha1.Update, ended func(*agentpb.Operation)) {
	request := ctrl.Request{NamespacedName: ctrlclient.ObjectKeyFromObject(update)}
	log := ctrl.Log.WithName("update").WithValues("update", request, "uid", update.UID)
	first := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
	backoff := first
	pace := rate.NewLimiter(observedPerSecond, observedAtOnce)
	urgent := rate.NewLimiter(rate.Every(urgentInterval), urgentBurst)
	for ctx.Err() == nil {
		start, seen := time.Now(), false
		final, err := r.watchOnce(ctx, update, func(operation *agentpb.Operation) {
			seen = true
			// Progress waits a little, together with what follows it: a busy operation does not cause a stream of writes, and of a short operation
			// only the result is written.
			if !operation.GetState().Final() && pace.Wait(ctx) == nil {
				r.background.queue.AddAfter(request, r.ProgressInterval)
			}
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			ended(final)
		} else {
			log.V(1).Info("the watch of the operation ended early", "error", err.Error())
		}
		// When an agent that answered is gone, the status should show that.
		if (err == nil || errors.Is(err, client.ErrNotFound) || seen) && urgent.Allow() {
			r.background.queue.Add(request)
		} else {
			r.background.queue.AddAfter(request, r.ProgressInterval)
		}
		if time.Since(start) > steadyTime {
			backoff = first
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
		}
	}
}

// watchOnce watches the operation to its end, or as long as the connection lasts. It reads the Workspace each time, because its agent may
// have moved.
func (r *Reconciler) watchOnce(ctx context.Context, update *autov1alpha1.Update, changed func(*agentpb.Operation)) (*agentpb.Operation, error) {
	workspace, err := r.workspaceOf(ctx, update)
	if err != nil {
		return nil, err
	}
	if workspace == nil {
		return nil, agentruntime.ErrNoAgent
	}
	agent, err := r.Runtime.Wake(ctx, workspace)
	if err != nil {
		return nil, err
	}
	return agent.WatchOperation(ctx, string(update.UID), changed)
}
