// Package program is the controller of Programs: it says whether a Program can be run, and packs it as an artifact that Stacks
// use like any other.
package program

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// fieldOwner is the field manager of everything that this controller writes.
const fieldOwner = "stack-controller"

// conflictInterval is when to look again at a Program that was not what it seemed: its latest version is on its way.
const conflictInterval = 500 * time.Millisecond

// +kubebuilder:rbac:groups=pulumi.com,resources=programs,verbs=get;list;watch
// +kubebuilder:rbac:groups=pulumi.com,resources=programs/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Programs. Nothing is kept of a Program outside of its object, so that there is nothing to do when it is
// deleted.
type Reconciler struct {
	client.Client
	record.EventRecorder
	// Selector picks the Programs whose status this controller writes; nil means all of them. The cache has the other ones too,
	// because Stacks read Programs whatever labels these have.
	Selector labels.Selector
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	err := ctrl.NewControllerManagedBy(mgr).
		For(&pulumiv1.Program{}, builder.WithPredicates(predicate.And(r.selected(), changed))).
		WithOptions(options).
		Complete(r)
	if err != nil {
		return fmt.Errorf("build the Program controller: %w", err)
	}
	return nil
}

func (r *Reconciler) selected() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		return r.Selector == nil || r.Selector.Matches(labels.Set(object.GetLabels()))
	})
}

// Reconcile renders the Program and writes its status when that changed. What it says depends on the Program alone, so that only
// a change of the Program wakes it.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	program := &pulumiv1.Program{}
	if err := r.Get(ctx, request.NamespacedName, program); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !program.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := program.DeepCopy()
	tarball, err := Render(program)
	var invalid *InvalidError
	switch {
	case errors.As(err, &invalid):
		markInvalid(program, invalid)
	case err != nil:
		return ctrl.Result{}, err
	default:
		markReady(program, digest.FromBytes(tarball), int64(len(tarball)), time.Now())
	}
	if err := r.patchStatus(ctx, before, program); apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.announce(before, program)
	return ctrl.Result{}, nil
}

// patchStatus writes the status when it changed. It fails when the Program is not any more what was rendered. A Program that is
// gone needs no status.
func (r *Reconciler) patchStatus(ctx context.Context, before, program *pulumiv1.Program) error {
	if equality.Semantic.DeepEqual(before.Status, program.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, program, patch, client.FieldOwner(fieldOwner)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
