// Package stack is the controller of Stacks: it observes a Stack, its source, its Workspace and its current Update,
// decides on one action, and carries it out. It never waits for a pulumi run.
package stack

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	runtimecontroller "github.com/fluxcd/pkg/runtime/controller"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/metrics"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
)

const (
	// fieldOwner is the field manager of everything that this controller writes.
	fieldOwner = "stack-controller"
	// conflictInterval is when a Stack is looked at again that was changed while it was decided on.
	conflictInterval = 100 * time.Millisecond
)

// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks/status,verbs=patch
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks/finalizers,verbs=update
// +kubebuilder:rbac:groups=pulumi.com,resources=programs,verbs=get;list;watch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces;updates,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=gitrepositories;ocirepositories;buckets;externalartifacts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Stacks.
type Reconciler struct {
	client.Client
	record.EventRecorder
	runtimecontroller.Metrics

	// Live reads what must not be cached: Secrets, and what a decision depends on when the cache may be behind.
	Live client.Reader
	// Contents tells which parts of artifacts are the same.
	Contents *artifact.Contents
	// AllowCrossNamespaceRefs permits to depend on Stacks in other namespaces.
	AllowCrossNamespaceRefs bool
	// Sources resolves sources.
	Sources *source.Set
	// Artifacts fetches artifacts into the store without blocking.
	Artifacts *artifact.Fetcher
	// References watches the Secrets and ConfigMaps that Stacks use; nil when nobody does.
	References *references.Watcher
	// WaitInterval is when to look again at something that is missing and that no watch covers.
	WaitInterval time.Duration
	// Jitter is the fraction by which the intervals between attempts and between resyncs are lengthened at most.
	Jitter float64
	// Stacks are the metrics about Stacks.
	Stacks *metrics.Stacks
}

// Reconcile observes, decides, acts, and writes the status at most once.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	start := time.Now()
	stack := &pulumiv1.Stack{}
	if err := r.Get(ctx, request.NamespacedName, stack); err != nil {
		if apierrors.IsNotFound(err) {
			r.Stacks.Forget(request.NamespacedName)
			r.Sources.Forget(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	defer func() {
		r.Stacks.Observe(stack)
		r.RecordDuration(ctx, stack, start)
	}()
	if !stack.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(stack, pulumiv1.Finalizer) {
		return ctrl.Result{}, nil
	}
	if err := r.ensureFinalizer(ctx, stack); err != nil {
		return ctrl.Result{}, err
	}

	before := stack.DeepCopy()
	outcome, err := r.reconcile(ctx, stack)
	if err == nil {
		err = outcome.err
	}
	if patchErr := r.write(ctx, before, stack); apierrors.IsConflict(patchErr) {
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	} else if patchErr != nil {
		return ctrl.Result{}, patchErr
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if outcome.then != nil {
		// What must not happen before the status is written: it is told once, and may destroy the only other record.
		if err := outcome.then(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: outcome.after}, nil
}

// outcome is how one reconcile ended.
type outcome struct {
	// after is when to come back; zero leaves it to the watches.
	after time.Duration
	// err is what to try again with the work queue's backoff, after the status was written.
	err error
	// then runs after the status was written.
	then func(context.Context) error
}

// reconcile changes the status in memory only. A finished Update is recorded first; then there is a new decision to make.
func (r *Reconciler) reconcile(ctx context.Context, stack *pulumiv1.Stack) (outcome, error) {
	observed, err := r.observe(ctx, stack)
	if err != nil {
		return outcome{}, err
	}
	var then func(context.Context) error
	decided := decide(*observed)
	if decided.action == actionRecord {
		finished := observed.update
		if err := r.recordResult(ctx, stack, finished); err != nil {
			return outcome{}, err
		}
		observed.update, observed.now = nil, time.Now()
		if err := r.observeContent(ctx, observed); err != nil {
			return outcome{}, err
		}
		recorded := stack.Status.LastUpdate
		then = func(ctx context.Context) error {
			r.announce(stack, recorded, finished)
			return r.pruneUpdates(ctx, stack, recorded.Name)
		}
		decided = decide(*observed)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("decided", "action", decided.action, "reason", decided.reason, "message", decided.message, "after", decided.after.String())
	result, err := r.act(ctx, observed, decided)
	result.then = inOrder(then, result.then)
	return result, err
}

// inOrder returns a function that calls both, the second one when the first one succeeded. Either may be nil.
func inOrder(first, second func(context.Context) error) func(context.Context) error {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		return second(ctx)
	}
}

// ensureFinalizer adds the finalizer before anything is created that it has to clean up.
func (r *Reconciler) ensureFinalizer(ctx context.Context, stack *pulumiv1.Stack) error {
	if !stack.DeletionTimestamp.IsZero() || controllerutil.ContainsFinalizer(stack, pulumiv1.Finalizer) {
		return nil
	}
	before := stack.DeepCopy()
	controllerutil.AddFinalizer(stack, pulumiv1.Finalizer)
	if err := r.Patch(ctx, stack, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("add the finalizer: %w", err)
	}
	return nil
}

// write writes what the reconcile changed: first the memory that has to outlive the status, and then the status.
func (r *Reconciler) write(ctx context.Context, before, stack *pulumiv1.Stack) error {
	if err := r.remember(ctx, before, stack); err != nil {
		return err
	}
	return r.patchStatus(ctx, before, stack)
}

// patchStatus writes the status when it changed, all of it in one request: whoever sees a condition also sees what it speaks
// of. (The patch helper of Flux would write the conditions first and the rest after them.) The write fails when the Stack
// is not any more what the decision was made from.
func (r *Reconciler) patchStatus(ctx context.Context, before, stack *pulumiv1.Stack) error {
	if equality.Semantic.DeepEqual(before.Status, stack.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, stack, patch, client.FieldOwner(fieldOwner)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
