package stack

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// cancels tells whether the running Update has to be ended: nobody who goes on with the Stack would want to start the same again.
func cancels(o observation) bool {
	return o.stack.Spec.Suspend && cancelRequested(o.stack) && o.update.HasStarted() && !cancelRequested(o.update)
}

func cancelRequested(object metav1.Object) bool {
	return object.GetAnnotations()[pulumiv1.CancelUpdateAnnotation] == "true"
}

// wasCanceled tells whether the Update ended because somebody asked for it, which is no failure of what it ran.
func wasCanceled(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	return stack.Spec.Suspend && update.HasFailed() && conditions.GetReason(update, autov1alpha1.UpdateFailed) == autov1alpha1.CanceledReason
}

// cancelUpdate hands the request on to the Update, whose end wakes the Stack. It is not deleted: its result has to be recorded.
func (r *Reconciler) cancelUpdate(ctx context.Context, o *observation, d decision) (outcome, error) {
	before := o.update.DeepCopy()
	metav1.SetMetaDataAnnotation(&o.update.ObjectMeta, pulumiv1.CancelUpdateAnnotation, "true")
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := r.Patch(ctx, o.update, patch, client.FieldOwner(fieldOwner))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// It goes on, or has ended meanwhile.
		return outcome{after: conflictInterval}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("cancel the update %s: %w", o.update.Name, err)
	}
	adopt(o)
	markWorking(o.stack, d.message)
	return outcome{}, nil
}

// showSuspended takes back that an update is on its way, when none is any more and none will follow.
func showSuspended(stack *pulumiv1.Stack) {
	if conditions.GetReason(stack, meta.ReconcilingCondition) != pulumiv1.StackProcessingReason {
		return
	}
	markStalled(stack, pulumiv1.SuspendedReason, "the stack is suspended and goes on when spec.suspend is false; "+describeLast(stack.Status.LastUpdate))
}

func describeLast(last *pulumiv1.StackUpdateStatus) string {
	switch {
	case last == nil:
		return "it was never updated"
	case last.State == pulumiv1.StackUpdateSucceeded:
		return fmt.Sprintf("its last %s succeeded%s", last.Type, describeApplied(last))
	}
	return fmt.Sprintf("its last %s did not succeed: %s", last.Type, last.Message)
}
