package update

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// forgetPatience bounds how long an Update waits until its agent has forgotten the operation. An agent keeps only so many,
	// so nothing is lost when it does not hear of it.
	forgetPatience = time.Minute
	// forgetInterval is the time between two attempts.
	forgetInterval = 5 * time.Second
	// awaitedInterval is when an Update whose time is over is looked at again that its Stack has not recorded.
	awaitedInterval = 2 * time.Second
)

// errStale says that the Update was changed since the cache saw it.
var errStale = errors.New("the update changed since it was read")

// claim makes sure that an operation is started for what the API server knows right now, and puts the finalizer on the
// Update: from here on its deletion has something to end. An Update that is complete, or was started, must not be started
// again because a cache is behind.
func (r *Reconciler) claim(ctx context.Context, update *autov1alpha1.Update) error {
	if !controllerutil.ContainsFinalizer(update, pulumiv1.Finalizer) {
		// The lock makes this fail when the Update is not what the cache says.
		return r.patchFinalizers(ctx, update, controllerutil.AddFinalizer)
	}
	live := &autov1alpha1.Update{}
	if err := r.live.Get(ctx, ctrlclient.ObjectKeyFromObject(update), live); err != nil {
		return fmt.Errorf("read the update again: %w", err)
	}
	if live.UID != update.UID || live.Generation != update.Generation || live.HasStarted() || live.IsComplete() {
		return errStale
	}
	// Whatever else the cache missed does not matter, and must not make the write about the start fail: which versions were read is
	// known now only.
	live.DeepCopyInto(update)
	return nil
}

// retire ends the care for a complete Update: its agent forgets the operation, the finalizer goes, and when its time is over
// so does the Update.
func (r *Reconciler) retire(ctx context.Context, update *autov1alpha1.Update) (ctrl.Result, error) {
	key := ctrlclient.ObjectKeyFromObject(update)
	r.jobs.stop(key)
	r.endings.drop(key)
	if controllerutil.ContainsFinalizer(update, pulumiv1.Finalizer) {
		if err := r.forget(ctx, update); err != nil {
			if completed := conditions.Get(update, autov1alpha1.UpdateComplete); time.Since(completed.LastTransitionTime.Time) < forgetPatience {
				ctrl.LoggerFrom(ctx).V(1).Info("the agent did not forget the operation, trying again", "error", err.Error())
				return ctrl.Result{RequeueAfter: forgetInterval}, nil
			}
			ctrl.LoggerFrom(ctx).Info("the agent did not forget the operation; it removes old ones itself", "error", err.Error())
		}
		if err := r.patchFinalizers(ctx, update, controllerutil.RemoveFinalizer); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !update.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	return r.expire(ctx, update)
}

// forget lets the agent remove what it keeps of the operation. What is kept goes with the Workspace.
func (r *Reconciler) forget(ctx context.Context, update *autov1alpha1.Update) error {
	if update.Status.StartTime == nil {
		return nil
	}
	workspace, err := r.workspaceOf(ctx, update)
	if err != nil || workspace == nil || !workspace.DeletionTimestamp.IsZero() {
		return err
	}
	agent, err := r.runtime.Connect(ctx, workspace)
	if err != nil {
		return err
	}
	return agent.ForgetOperation(ctx, string(update.UID))
}

// patchFinalizers changes the list of finalizers with the lock of the object's version, because a patch replaces the whole
// list.
func (r *Reconciler) patchFinalizers(ctx context.Context, update *autov1alpha1.Update, change func(ctrlclient.Object, string) bool) error {
	before := update.DeepCopy()
	if !change(update, pulumiv1.Finalizer) {
		return nil
	}
	patch := ctrlclient.MergeFromWithOptions(before, ctrlclient.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, update, patch, ctrlclient.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("write the finalizers: %w", err)
	}
	return nil
}

// expire deletes a complete Update whose time is over and whose result is not waited for, or comes back when it is.
//
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get
func (r *Reconciler) expire(ctx context.Context, update *autov1alpha1.Update) (ctrl.Result, error) {
	left, limited := timeLeft(update, time.Now())
	if !limited {
		return ctrl.Result{}, nil
	}
	if left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if awaited, err := r.isAwaited(ctx, update); err != nil || awaited {
		return ctrl.Result{RequeueAfter: awaitedInterval}, err
	}
	// An Update that was made again under this name is not the one that expired.
	if err := r.client.Delete(ctx, update, ctrlclient.Preconditions{UID: &update.UID}); err != nil {
		return ctrl.Result{}, fmt.Errorf("delete the expired update: %w", err)
	}
	r.recorder.Eventf(update, corev1.EventTypeNormal, eventExpired, "deleted %s after its completion", update.Spec.TTLAfterCompleted.Duration)
	return ctrl.Result{}, nil
}

// isAwaited tells whether a Stack has the result of its Update still to record, however short the time is that its template leaves:
// otherwise the Stack would not know what ran, and run it again.
func (r *Reconciler) isAwaited(ctx context.Context, update *autov1alpha1.Update) (bool, error) {
	for _, owner := range update.OwnerReferences {
		if owner.Kind != pulumiv1.StackKind || !strings.HasPrefix(owner.APIVersion, pulumiv1.GroupVersion.Group+"/") {
			continue
		}
		stack := &pulumiv1.Stack{}
		if err := r.live.Get(ctx, ctrlclient.ObjectKey{Namespace: update.Namespace, Name: owner.Name}, stack); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("read the stack %s of the update: %w", owner.Name, err)
		}
		return stack.UID == owner.UID && awaits(stack, update), nil
	}
	return false, nil
}

// awaits tells whether the Stack has neither the result of the Update nor that of a later one.
func awaits(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	current, last := stack.Status.CurrentUpdate, stack.Status.LastUpdate
	switch {
	case current != nil && current.Name == update.Name, last == nil:
		return true
	}
	return last.Name != update.Name && last.LastResyncTime.Time.Before(update.CreationTimestamp.Time)
}

// timeLeft returns how long a complete Update stays; limited is false when it stays until somebody deletes it.
func timeLeft(update *autov1alpha1.Update, now time.Time) (left time.Duration, limited bool) {
	complete := conditions.Get(update, autov1alpha1.UpdateComplete)
	if update.Spec.TTLAfterCompleted == nil || complete == nil {
		return 0, false
	}
	return complete.LastTransitionTime.Add(update.Spec.TTLAfterCompleted.Duration).Sub(now), true
}
