package update

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// In the Workspace of a Stack with spec.approval nothing is changed but by its approved plan, whoever made the Update and whatever its labels
// and owners say: who may create Updates can write all of that. The status of the Stack counts, which only its controller writes.

// approvalView is how an Update stands to spec.approval.
type approvalView struct {
	// problem is why it must not run; empty when it may.
	problem string
	// own says that it may be an Update of the Stack, which is about to approve or to remove it.
	own bool
}

// observeApproval finds out whether the Update may run as far as the Stack of its Workspace is concerned. A Stack that requires approvals is
// read from the API server: a rejection counts until the operation starts.
func (r *Reconciler) observeApproval(ctx context.Context, o *observation) error {
	owner := stackOf(o.workspace)
	if owner == nil || changesNothing(o.update) {
		return nil
	}
	stack, key := &pulumiv1.Stack{}, types.NamespacedName{Namespace: o.workspace.Namespace, Name: owner.Name}
	// One that the cache does not have may be of another shard.
	if err := r.Get(ctx, key, stack); ctrlclient.IgnoreNotFound(err) != nil || err == nil && stack.Spec.Approval == nil {
		return ignoreMissing(err, "read the stack of workspace %q", o.workspace.Name)
	}
	stack = &pulumiv1.Stack{}
	if err := r.Live.Get(ctx, key, stack); err != nil {
		return ignoreMissing(err, "read the stack of workspace %q", o.workspace.Name)
	}
	if stack.UID == owner.UID {
		o.approval = approvalOf(o.update, stack)
	}
	return nil
}

func ignoreMissing(err error, format string, args ...any) error {
	if err = ctrlclient.IgnoreNotFound(err); err != nil {
		return fmt.Errorf(format+": %w", append(args, err)...)
	}
	return nil
}

// approvalOf says how an Update stands to the Stack whose Workspace it runs in.
func approvalOf(update *autov1alpha1.Update, stack *pulumiv1.Stack) (view approvalView) {
	plan, wanted := stack.Status.Plan, update.Spec.Plan
	if stack.Spec.Approval == nil || changesNothing(update) {
		return view
	}
	view.own = isOwnedBy(update, stack)
	switch {
	case wanted == nil:
		view.problem = fmt.Sprintf("Stack %q has spec.approval, and this update has no plan that was approved", stack.Name)
	case plan == nil || plan.Name != wanted.Name || plan.Digest != wanted.Digest:
		view.problem = fmt.Sprintf("plan %q with this digest is not that of Stack %q", wanted.Name, stack.Name)
	case plan.State != pulumiv1.PlanApproved:
		view.problem = fmt.Sprintf("plan %q of Stack %q is not approved: it is %s", wanted.Name, stack.Name, plan.State)
	case cmp.Or(wanted.Enforce, autov1alpha1.EnforcePlan) != cmp.Or(plan.Enforce, autov1alpha1.EnforcePlan):
		view.problem = fmt.Sprintf("Stack %q has plan %q carried out with enforce: %s", stack.Name, wanted.Name, cmp.Or(plan.Enforce, autov1alpha1.EnforcePlan))
	case plan.Generation != stack.Generation:
		view.problem = fmt.Sprintf("Stack %q was edited after plan %q was made", stack.Name, wanted.Name)
	default:
		return approvalView{}
	}
	return view
}

// changesNothing reports whether the operation only shows what would be changed.
func changesNothing(update *autov1alpha1.Update) bool {
	switch update.Spec.Type {
	case autov1alpha1.UpdateTypeUp:
		return false
	case autov1alpha1.UpdateTypeRefresh, autov1alpha1.UpdateTypeDestroy:
		return update.Spec.PreviewOnly != nil && *update.Spec.PreviewOnly
	}
	// A preview, or what is no operation.
	return true
}

func isOwnedBy(update *autov1alpha1.Update, stack *pulumiv1.Stack) bool {
	return slices.ContainsFunc(update.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == stack.UID })
}

// decideOnApproval keeps an Update of the Stack itself until that has decided about it, and refuses any other: it would keep those of the
// Stack from running.
func decideOnApproval(o *observation) decision {
	if !o.approval.own {
		return finish(autov1alpha1.ApprovalRequiredReason,
			o.approval.problem+": change the source or the spec of the Stack, and approve the plan that it makes of that")
	}
	d := retryAfter(autov1alpha1.ApprovalRequiredReason, o.approval.problem, approvalInterval)
	d.wake, d.brief = byStack, true
	return d
}

// planChanged reports whether what a Stack says about its plan changed.
func planChanged(before, after *pulumiv1.Stack) bool {
	return shownPlan(before) != shownPlan(after)
}

func shownPlan(stack *pulumiv1.Stack) string {
	plan := stack.Status.Plan
	if plan == nil || stack.Spec.Approval == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s %d", plan.Name, plan.Digest, plan.State, plan.Generation)
}
