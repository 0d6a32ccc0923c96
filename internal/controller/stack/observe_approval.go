package stack

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=approvals,verbs=list;watch

// observeApprovals finds what approvers decided about the plan in the status, and whether the Update that made the plan still exists. A
// user who deletes that Update withdraws the plan.
func (r *Reconciler) observeApprovals(ctx context.Context, o *observation) error {
	plan := o.stack.Status.Plan
	if plan == nil || o.stack.Spec.Approval == nil || plan.State == pulumiv1.PlanApplied {
		return nil
	}
	planned, err := r.getUpdate(ctx, types.NamespacedName{Namespace: o.stack.Namespace, Name: plan.Name})
	if err != nil {
		return err
	}
	if planned != nil && !isPlanOf(o.stack, planned) {
		// The cache may have an earlier Update with this name.
		if planned, err = r.liveUpdate(ctx, client.ObjectKeyFromObject(planned)); err != nil {
			return err
		}
	}
	o.planGone = planned == nil || !planned.DeletionTimestamp.IsZero() || !isPlanOf(o.stack, planned)
	var list autov1alpha1.ApprovalList
	// The objects are only read, and there may be many: whoever may approve can create any number of Approvals.
	err = r.List(ctx, &list, client.InNamespace(o.stack.Namespace), client.MatchingFields{approvalIndex: plan.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list the approvals of plan %s: %w", plan.Name, err)
	}
	o.approvals = list.Items
	return nil
}

// requestsForApproval returns the Stack whose plan the Approval is about.
func (r *Reconciler) requestsForApproval(ctx context.Context, object client.Object) []reconcile.Request {
	update := &autov1alpha1.Update{}
	key := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.(*autov1alpha1.Approval).Spec.Update}
	if key.Name == "" {
		return nil // it is about a revision
	}
	if err := informercache.Cached(r.Client).Get(ctx, key, update, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot read the update that an approval names", "update", key)
		}
		return nil
	}
	owner := pulumiv1.OwningStack(update)
	if owner == nil {
		return nil
	}
	return []reconcile.Request{{Namespace: update.Namespace, Name: owner.Name}}
}
