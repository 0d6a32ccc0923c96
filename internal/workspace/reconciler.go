// Package workspace is the controller of Workspaces: it keeps an agent for each of them and says in the status whether
// operations can run there.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// fieldOwner is the field manager of everything that this controller writes.
const fieldOwner = "stack-controller"

// infoTimeout bounds how long an agent, which answers from memory, may hold a worker.
const infoTimeout = 5 * time.Second

// conflictInterval is when to look again at a Workspace that was not what it seemed: its latest version is on its way.
const conflictInterval = 500 * time.Millisecond

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Workspaces.
type Reconciler struct {
	client.Client
	record.EventRecorder
	// Runtime is where the agents live. One that also implements Ignorer is asked which fields have no effect.
	Runtime runtime.Runtime
}

// Ignorer is a Runtime for which some fields of a Workspace mean nothing.
type Ignorer interface {
	// Ignores lists the names of the fields in spec that are set and have no effect.
	Ignores(workspace *autov1alpha1.Workspace) []string
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	err := ctrl.NewControllerManagedBy(mgr).
		For(&autov1alpha1.Workspace{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(r.Runtime.Events(), &handler.EnqueueRequestForObject{})).
		WithOptions(options).
		Complete(r)
	if err != nil {
		return fmt.Errorf("build the Workspace controller: %w", err)
	}
	return nil
}

// Reconcile observes, decides, and writes the status at most once. What changes about the agent wakes the Workspace, so
// nothing is waited for; where the runtime cannot know of a change it says when to look again.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	workspace := &autov1alpha1.Workspace{}
	err := r.Get(ctx, request.NamespacedName, workspace)
	if apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.remove(ctx, request)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the workspace: %w", err)
	}
	observed := r.observe(ctx, workspace)
	if ctx.Err() != nil {
		// The manager stops, and the runtime with it; that says nothing about the agent.
		return ctrl.Result{}, nil
	}
	before := workspace.DeepCopy()
	decided := decide(observed)
	decided.apply(workspace)
	if err := r.patchStatus(ctx, before, workspace); apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.announce(before, decided)
	return ctrl.Result{RequeueAfter: decided.after}, decided.retry
}

// observe makes the agent exist and asks how it stands.
func (r *Reconciler) observe(ctx context.Context, workspace *autov1alpha1.Workspace) observation {
	o := observation{deleting: !workspace.DeletionTimestamp.IsZero(), pulumiVersion: workspace.Status.PulumiVersion}
	if o.deleting {
		// Its agent ends when the object is gone: until then an operation may be on its way to its end.
		return o
	}
	o.agent, o.err = r.Runtime.Ensure(ctx, workspace)
	if o.err != nil || !o.agent.Ready {
		return o
	}
	if o.agent.Resting && o.pulumiVersion != "" && proto.PulumiProblem(o.pulumiVersion) == "" {
		// Asking would start it, for nothing.
		return o
	}
	o.pulumiVersion, o.err = r.askVersion(ctx, workspace)
	return o
}

// askVersion returns the version of the pulumi CLI, which also proves that the agent answers.
func (r *Reconciler) askVersion(ctx context.Context, workspace *autov1alpha1.Workspace) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	agent, err := r.Runtime.Connect(ctx, workspace)
	if err != nil {
		return "", err
	}
	info, err := agent.GetInfo(ctx)
	if err != nil {
		return "", err
	}
	return info.GetPulumiVersion(), nil
}

// remove ends the agent of a Workspace that is gone. While that takes its time nothing is to be done: an event follows.
func (r *Reconciler) remove(ctx context.Context, request ctrl.Request) error {
	err := r.Runtime.Delete(ctx, request.NamespacedName)
	if errors.Is(err, runtime.ErrEnding) || ctx.Err() != nil {
		return nil
	}
	return err
}

// patchStatus writes the status when it changed, all of it in one request: whoever sees that a Workspace is ready also sees
// its address. (The patch helper of Flux would write the conditions first and the rest after them.) A Workspace that is gone
// needs none. The write fails when the Workspace is not any more what the decision was made from.
func (r *Reconciler) patchStatus(ctx context.Context, before, workspace *autov1alpha1.Workspace) error {
	if equality.Semantic.DeepEqual(before.Status, workspace.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, workspace, patch, client.FieldOwner(fieldOwner)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
