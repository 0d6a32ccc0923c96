package update

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// In the Workspace of a Stack with spec.approval, only the approved plan of the Stack may change anything, whoever created the Update and
// whatever its labels and owner references are: anybody who may create Updates can set these. What counts is the status of the Stack, which
// only the Stack controller writes.

// approvalView is whether spec.approval of a Stack lets an Update run.
type approvalView struct {
	// problem is why the Update must not run; empty when it may.
	problem string
	// own is true when the owner references of the Update name the Stack. The Stack controller is about to approve the plan, or to remove the
	// Update.
	own bool
}

// observeApproval finds out whether the Stack of the Workspace lets the Update run. A Stack that requires approvals is read from the API
// server, so that a rejection counts until the operation starts.
func (r *Reconciler) observeApproval(ctx context.Context, o *observation) error {
	owner := pulumiv1.OwningStack(o.workspace)
	if owner == nil || o.update.ChangesNothing() {
		return nil
	}
	// A Stack that is not in the cache may belong to another shard.
	stack, err := readStack(ctx, r, o.workspace.Namespace, owner.Name)
	if err != nil || stack.Name != "" && stack.Spec.Approval == nil {
		return err
	}
	stack, err = readStack(ctx, r.Live, o.workspace.Namespace, owner.Name)
	if err == nil && stack.UID == owner.UID {
		o.approval = approvalOf(o.update, stack, o.now)
	}
	return err
}

// readStack returns the Stack, or an empty one when it does not exist.
func readStack(ctx context.Context, reader ctrlclient.Reader, namespace, name string) (*pulumiv1.Stack, error) {
	stack := &pulumiv1.Stack{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, stack)
	if ctrlclient.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the stack %s: %w", name, err)
	}
	return stack, nil
}

// approvalOf returns whether the Stack whose Workspace the Update runs in lets it run.
func approvalOf(update *autov1alpha1.Update, stack *pulumiv1.Stack, now time.Time) (view approvalView) {
	plan, wanted := stack.Status.Plan, update.Spec.Plan
	if stack.Spec.Approval == nil || update.ChangesNothing() {
		return view
	}
	view.own = stack.Owns(update)
	switch {
	case wanted == nil:
		view.problem = fmt.Sprintf("Stack %q has spec.approval, and this update has no plan that was approved", stack.Name)
	case plan == nil || plan.Name != wanted.Name || plan.Digest != wanted.Digest:
		view.problem = fmt.Sprintf("plan %q with this digest is not that of Stack %q", wanted.Name, stack.Name)
	case plan.State != pulumiv1.PlanApproved:
		view.problem = fmt.Sprintf("plan %q of Stack %q is not approved: it is %s", wanted.Name, stack.Name, plan.State)
	case plan.ExpiresAt != nil && !now.Before(plan.ExpiresAt.Time):
		view.problem = fmt.Sprintf("plan %q of Stack %q has expired", wanted.Name, stack.Name)
	case cmp.Or(wanted.Enforce, autov1alpha1.EnforcePlan) != cmp.Or(plan.Enforce, autov1alpha1.EnforcePlan):
		view.problem = fmt.Sprintf("Stack %q has plan %q carried out with enforce: %s", stack.Name, wanted.Name, cmp.Or(plan.Enforce, autov1alpha1.EnforcePlan))
	case plan.Generation != stack.Generation:
		view.problem = fmt.Sprintf("Stack %q was edited after plan %q was made", stack.Name, wanted.Name)
	default:
		return approvalView{}
	}
	return view
}

// decideOnApproval keeps an Update of the Stack itself waiting until the Stack has decided about it. It refuses any other Update, which
// would keep the Updates of the Stack from running while it waits.
func decideOnApproval(o *observation) decision {
	if !o.approval.own {
		return finish(autov1alpha1.ApprovalRequiredReason,
			o.approval.problem+": change the source or the spec of the Stack, and approve the plan that it makes of that")
	}
	d := retryAfter(autov1alpha1.ApprovalRequiredReason, o.approval.problem, approvalInterval)
	d.wake, d.brief = byStack, true
	return d
}

// planIdentity identifies the plan in the status of a Stack, with its state; empty when the Stack has none or requires no approval.
func planIdentity(stack *pulumiv1.Stack) string {
	plan := stack.Status.Plan
	if plan == nil || stack.Spec.Approval == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s %d", plan.Name, plan.Digest, plan.State, plan.Generation)
}
