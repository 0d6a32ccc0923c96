package pod

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/notify"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

// ensureTimeout bounds all that Ensure asks of the API server and of an agent.
const ensureTimeout = 30 * time.Second

// Runtime runs agents in pods. Add it to the manager before the manager starts.
type Runtime struct {
	options     Options
	tokens      *credentials.Tokens
	events      *notify.Notifier
	connections *connections
	rollout     *rollout
	// active says that this controller leads.
	active atomic.Bool

	mu       sync.Mutex
	trackers map[types.NamespacedName]*tracker
}

var (
	_ runtime.Runtime                = &Runtime{}
	_ manager.Runnable               = &Runtime{}
	_ manager.LeaderElectionRunnable = &Runtime{}
)

// New returns a Runtime, whose cache must not be started yet. It fails when an option is missing.
func New(ctx context.Context, options Options) (*Runtime, error) {
	options, err := options.complete()
	if err != nil {
		return nil, err
	}
	tokens, err := credentials.NewTokens(options.Config)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		options: options, tokens: tokens, events: notify.New(), connections: newConnections(),
		trackers: map[types.NamespacedName]*tracker{},
	}
	r.rollout = newRollout(r.events.Add)
	return r, r.watch(ctx)
}

// NeedLeaderElection says that only the leader looks after pods.
func (r *Runtime) NeedLeaderElection() bool { return true }

// Start delivers events until ctx is done, and then closes the connections. The pods stay as they are.
func (r *Runtime) Start(ctx context.Context) error {
	r.active.Store(true)
	var running sync.WaitGroup
	running.Go(func() { r.events.Deliver(ctx) })
	running.Go(func() { r.rollout.run(ctx) })
	running.Wait()
	r.connections.closeAll()
	return nil
}

// Ensure makes sure that the objects of the Workspace are there and as they should be, and says how its pod stands. What the
// API server refuses is a status, not an error.
func (r *Runtime) Ensure(ctx context.Context, workspace *autov1alpha1.Workspace) (runtime.Status, error) {
	r.active.Store(true)
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	t := r.tracker(workspace)
	defer t.mu.Unlock()
	o, err := r.observe(ctx, t, workspace)
	if err != nil {
		if refusal := rejection(err); refusal != nil {
			return *refusal, nil
		}
		return runtime.Status{}, err
	}
	return r.act(ctx, t, workspace, o, decide(o))
}

// Delete lets go of the Workspace. Its objects are removed by the garbage collector, because the Workspace owned them; while
// there is a pod Delete returns ErrEnding, and an event follows when that is gone.
func (r *Runtime) Delete(ctx context.Context, key types.NamespacedName) error {
	r.mu.Lock()
	delete(r.trackers, key)
	r.mu.Unlock()
	r.rollout.end(key)
	r.connections.drop(key, "")
	r.tokens.Forget(credentials.Audience(key.Namespace, key.Name))
	workspace := &autov1alpha1.Workspace{}
	workspace.Namespace, workspace.Name = key.Namespace, key.Name
	err := r.options.Client.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: shape.PodName(workspace)}, &corev1.Pod{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for the pod of workspace %s: %w", key, err)
	}
	return fmt.Errorf("the pod of workspace %s is still there: %w", key, runtime.ErrEnding)
}

// Events reports the workspaces whose pod or other objects changed.
func (r *Runtime) Events() <-chan event.GenericEvent {
	return r.events.Events()
}

func keyOf(workspace *autov1alpha1.Workspace) types.NamespacedName {
	return types.NamespacedName{Namespace: workspace.Namespace, Name: workspace.Name}
}
