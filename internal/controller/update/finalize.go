package update

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// forgetTimeout bounds how long an Update waits until its agent has forgotten the operation. An agent keeps only a bounded number of
	// operations, so no harm is done if it is never asked.
	forgetTimeout = time.Minute
	// forgetInterval is the time between two attempts to reach the agent.
	forgetInterval = 5 * time.Second
	// awaitedInterval is the time to the next reconcile of an Update that its Stack has not recorded, and whose TTL is over or that was deleted.
	awaitedInterval = 2 * time.Second
	// keptInterval is the same for an Update whose TTL is over and whose outputs may be needed again. Each Stack with outputs has one, for as long
	// as it is not updated, and each look at it costs a request.
	keptInterval = 10 * time.Minute
	// proofTimeout bounds how long an Update that was deleted waits for its Stack, whose controller may be another one. A Stack that has not seen
	// the Update takes it for one that ran.
	proofTimeout = time.Minute
)

// finalize ends the work for a complete Update: its agent forgets the operation, the finalizer is removed, and when the TTL is over the
// Update is deleted.
func (r *Reconciler) finalize(ctx context.Context, update *autov1alpha1.Update) (ctrl.Result, error) {
	r.background.stop(ctrlclient.ObjectKeyFromObject(update))
	r.turns.forget(ctrlclient.ObjectKeyFromObject(update))
	if controllerutil.ContainsFinalizer(update, pulumiv1.Finalizer) {
		if err := r.forgetOperation(ctx, update); err != nil {
			if sinceCompletion(update) < forgetTimeout {
				ctrl.LoggerFrom(ctx).V(1).Info("the agent did not forget the operation, trying again", "error", err.Error())
				return ctrl.Result{RequeueAfter: forgetInterval}, nil
			}
			ctrl.LoggerFrom(ctx).Info("the agent did not forget the operation; it removes old ones itself", "error", err.Error())
		}
		if awaited, err := r.provesNoRun(ctx, update); err != nil || awaited {
			return ctrl.Result{RequeueAfter: awaitedInterval}, err
		}
		removed := func(update *autov1alpha1.Update) bool {
			return controllerutil.RemoveFinalizer(update, pulumiv1.Finalizer)
		}
		if err := r.patchMetadata(ctx, update, removed); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !update.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	return r.expire(ctx, update)
}

// provesNoRun reports whether an Update that was deleted is the only proof that it did not run, because the status of its Stack does not say so
// yet. Without it, the Stack would have to destroy what was never created.
func (r *Reconciler) provesNoRun(ctx context.Context, update *autov1alpha1.Update) (bool, error) {
	owner := pulumiv1.OwningStack(update)
	if owner == nil || update.DeletionTimestamp.IsZero() || !update.Status.NotRun || update.Status.StartTime != nil || update.ChangesNothing() ||
		sinceCompletion(update) > proofTimeout {
		return false, nil
	}
	stack, err := readStack(ctx, r.APIReader, update.Namespace, owner.Name)
	if err != nil || stack.UID != owner.UID {
		return false, err
	}
	if current := stack.Status.CurrentUpdate; current != nil {
		// The status may still name the Update whose place this one took.
		return current.Name == update.Name && (current.UID != update.UID || !current.Withdrawn), nil
	}
	// The status of a Stack without spec.approval may be written later, see Reconciler.ShowAfter of the Stack controller.
	return stack.Spec.Approval == nil && awaits(stack, update), nil
}

// withdrawnUpdate returns the Update of which the status of the Stack says that it did not run, if there is one.
func withdrawnUpdate(_ context.Context, stack ctrlclient.Object) []reconcile.Request {
	current := stack.(*pulumiv1.Stack).Status.CurrentUpdate
	if current == nil || !current.Withdrawn {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: stack.GetNamespace(), Name: current.Name}}}
}

// forgetOperation asks the agent to remove its record of the operation. A record that stays is removed with the Workspace.
func (r *Reconciler) forgetOperation(ctx context.Context, update *autov1alpha1.Update) error {
	if update.Status.StartTime == nil {
		return nil
	}
	workspace, err := r.workspaceOf(ctx, update)
	if err != nil || workspace == nil || !workspace.DeletionTimestamp.IsZero() {
		return err
	}
	agent, err := r.Runtime.Wake(ctx, workspace)
	if err != nil {
		return err
	}
	return agent.ForgetOperation(ctx, string(update.UID))
}

// patchMetadata writes what change changes in the metadata, with an optimistic lock, because a patch replaces the whole list of finalizers.
func (r *Reconciler) patchMetadata(ctx context.Context, update *autov1alpha1.Update, change func(*autov1alpha1.Update) (changed bool)) error {
	before := update.DeepCopy()
	if !change(update) {
		return nil
	}
	if err := patch.Object(ctx, r.Client, before, update); err != nil {
		return fmt.Errorf("write the metadata: %w", err)
	}
	return nil
}

// expire deletes a complete Update whose TTL is over and whose result no Stack waits for. The Stack may delete it earlier, see pruneUpdates in
// internal/controller/stack/result.go. Otherwise it returns when to try again.
//
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get
func (r *Reconciler) expire(ctx context.Context, update *autov1alpha1.Update) (ctrl.Result, error) {
	if update.Spec.TTLAfterCompleted == nil {
		return ctrl.Result{}, nil
	}
	if left := update.Spec.TTLAfterCompleted.Duration - sinceCompletion(update); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	awaited, kept, err := r.isNeeded(ctx, update)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case awaited:
		return ctrl.Result{RequeueAfter: awaitedInterval}, nil
	case kept:
		return ctrl.Result{RequeueAfter: keptInterval}, nil
	}
	// A new Update that has this name now is not the one that expired.
	if err := r.Delete(ctx, update, ctrlclient.Preconditions{UID: &update.UID}); err != nil {
		return ctrl.Result{}, fmt.Errorf("delete the expired update: %w", err)
	}
	r.Eventf(update, corev1.EventTypeNormal, eventExpired, "deleted %s after its completion", update.Spec.TTLAfterCompleted.Duration)
	return ctrl.Result{}, nil
}

func sinceCompletion(update *autov1alpha1.Update) time.Duration {
	return time.Since(conditions.Get(update, autov1alpha1.UpdateComplete).LastTransitionTime.Time)
}

// isNeeded reports whether a Stack still awaits the result of its Update, which it has to record, and whether the Update is kept because its outputs
// may have to be written again. This does not depend on how short the TTL in its template is: without the Update, the Stack would not know what ran,
// and would run it again.
func (r *Reconciler) isNeeded(ctx context.Context, update *autov1alpha1.Update) (awaited, kept bool, err error) {
	owner := pulumiv1.OwningStack(update)
	if owner == nil {
		return false, false, nil
	}
	stack, err := readStack(ctx, r.APIReader, update.Namespace, owner.Name)
	if err != nil || stack.UID != owner.UID {
		return false, false, err
	}
	isInput := true
	if r.Shard == nil { // otherwise the cache may lack the Stacks that have it as an input
		isInput, err = inputs.MayBeUsed(ctx, r, stack, r.Scope)
	}
	return awaits(stack, update), stack.KeepsOutputsOf(update, isInput), err
}

// awaits reports whether the Stack has neither the result of the Update nor that of a later one.
func awaits(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	current, last := stack.Status.CurrentUpdate, stack.Status.LastUpdate
	if current != nil && current.Name == update.Name || last == nil {
		return true
	}
	return last.Name != update.Name && !update.CreationTimestamp.Time.Before(last.LastResyncTime.Time)
}
