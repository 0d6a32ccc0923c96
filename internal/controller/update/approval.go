package update

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
)

// In the Workspace of a Stack with spec.approval, only the approved plan of the Stack may change anything, and a preview runs only the
// program of the Stack, whoever created the Update and whatever its labels, annotations and owner references are: anybody who may create
// Updates can set these. What counts is the status of the Stack, which only the Stack controller writes.

// approvalGrace is how long an Update whose owner is the Stack waits until the status of the Stack says that the controller created it. The
// status is written right after the Update is created.
const approvalGrace = 30 * time.Second

// approvalView is whether spec.approval of a Stack lets an Update run.
type approvalView struct {
	// problem is why the Update must not run; empty when it may.
	problem string
	// waits is true when the Stack controller may be about to change that: the Update is one of the Stack itself, or says so and is new.
	waits bool
	// stack is the Stack if the Update was created by hand and may run there because it changes nothing; nil otherwise.
	stack *pulumiv1.Stack
	// plan is the UID of the Update that made the approved plan; empty when no approval is needed.
	plan types.UID
}

// observeApproval finds out whether the Stack of the Workspace lets the Update run. The Workspace of a Stack has the name of the Stack, and
// may have lost its owner reference: `kubectl delete --cascade=orphan` removes that. A Stack that requires approvals is read from the API
// server, so that a rejection counts until the operation starts.
func (r *Reconciler) observeApproval(ctx context.Context, o *observation) error {
	workspace := o.workspace
	required := workspace.Annotations[pulumiv1.ApprovalRequiredAnnotation] == "true"
	stack, err := readStack(ctx, r, workspace.Namespace, workspace.Name)
	switch {
	case err != nil:
		return err
	case stack.Name == "" && !required && pulumiv1.OwningStack(workspace) == nil && r.Shard == nil:
		return nil
	case stack.Name != "" && !required && stack.Spec.Approval == nil:
		return nil
	}
	// A Stack that is not in the cache may belong to another shard.
	if stack, err = readStack(ctx, r.APIReader, workspace.Namespace, workspace.Name); err != nil {
		return err
	}
	if stack.Name == "" && required {
		o.approval.problem = fmt.Sprintf("Workspace %q belonged to a Stack with spec.approval that no longer exists: delete the Workspace",
			workspace.Name)
		return nil
	}
	o.approval = approvalOf(o.update, stack, r.Sources.IsOwn, o.now)
	return nil
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

// stackNamed returns the Stack with the name, nil when there is none, from the cache and, if it is not there, from the API server: the cache
// does not have the Stacks of other shards.
func (r *Reconciler) stackNamed(ctx context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
	for _, reader := range []ctrlclient.Reader{r.Client, r.APIReader} {
		stack := &pulumiv1.Stack{}
		err := reader.Get(ctx, name, stack)
		if err == nil {
			return stack, nil
		}
		if !apierrors.IsNotFound(err) && reader == r.APIReader {
			return nil, fmt.Errorf("read the stack %s: %w", name, err)
		}
	}
	return nil, nil
}

// ownSource reports whether what an Update runs comes from the source of the Stack.
type ownSource func(stack *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool

// approvalOf returns whether the Stack whose Workspace the Update runs in lets it run.
func approvalOf(update *autov1alpha1.Update, stack *pulumiv1.Stack, isOwn ownSource, now time.Time) (view approvalView) {
	if stack.Spec.Approval == nil {
		return view
	}
	created := stack.Created(update)
	view.waits = created || stack.Owns(update) && now.Sub(update.CreationTimestamp.Time) < approvalGrace
	switch {
	case update.ChangesNothing() && created:
		return approvalView{}
	case update.ChangesNothing():
		if view.problem = previewProblem(update, stack, isOwn); view.problem == "" {
			view = approvalView{stack: stack}
		}
		return view
	}
	if view.problem = planProblemOf(update, stack, now); view.problem == "" {
		view = approvalView{plan: stack.Status.Plan.UID}
	}
	return view
}

// previewProblem returns why an Update that changes nothing, and that the Stack did not create, must not run; empty when it may. It runs with
// the credentials of the Stack, so it must not run another program, and must not work on another stack of the backend.
func previewProblem(update *autov1alpha1.Update, stack *pulumiv1.Stack, isOwn ownSource) string {
	spec, problem := &update.Spec, ""
	switch {
	case spec.StackName != stack.Spec.Stack:
		problem = "this update is about another stack"
	case spec.Source != nil && !isOwn(stack, spec.Source):
		problem = "this update runs a program that is not from the source of the Stack"
	case spec.ProjectInfo != nil && !ptr.Equal(spec.ProjectInfo, stack.Status.ProjectInfo):
		problem = "this update is about another project"
	case ptr.Deref(spec.NewStack, false):
		problem = "this update would create a stack"
	default:
		return ""
	}
	return fmt.Sprintf("Stack %q has spec.approval, and %s: in its Workspace, a preview shows only what the source of the Stack would change in its stack %q",
		stack.Name, problem, stack.Spec.Stack)
}

// planProblemOf returns why the Stack does not let an Update run that changes something; empty when the Update carries out the approved plan.
func planProblemOf(update *autov1alpha1.Update, stack *pulumiv1.Stack, now time.Time) string {
	const todo = ": change the source or the spec of the Stack, and approve the plan that it makes of that"
	if update.Spec.Plan == nil {
		return fmt.Sprintf("Stack %q has spec.approval, and this update has no plan that was approved", stack.Name) + todo
	}
	plan, changed := stack.Status.Plan, ""
	if plan != nil && plan.Generation != stack.Generation {
		changed = "the Stack was edited after that"
	}
	verdict := plans.Judge(plans.Case{
		Plan: plan, Policy: stack.Spec.Approval, Reference: plans.CarriedOutBy(update), Changed: changed, Now: now,
	})
	if verdict.State == plans.Approved {
		return ""
	}
	return fmt.Sprintf("Stack %q does not let this update run: %s", stack.Name, verdict.Problem) + todo
}

// decideOnApproval keeps an Update of the Stack itself waiting until the Stack has decided about it. It refuses any other Update, which
// would keep the Updates of the Stack from running while it waits.
func decideOnApproval(o *observation) decision {
	if !o.approval.waits {
		return finish(autov1alpha1.ApprovalRequiredReason, o.approval.problem)
	}
	d := retryAfter(autov1alpha1.ApprovalRequiredReason, o.approval.problem, approvalInterval)
	d.wake, d.brief = byStack, true
	return d
}

// planIdentity identifies what the status of a Stack with spec.approval says about its plan and about the Update that is in progress.
func planIdentity(stack *pulumiv1.Stack) (identity string) {
	if stack.Spec.Approval == nil {
		return ""
	}
	if current := stack.Status.CurrentUpdate; current != nil {
		identity = string(current.UID)
	}
	if plan := stack.Status.Plan; plan != nil {
		identity += fmt.Sprintf(" %s %s %s %s %d", plan.Name, plan.Digest, plan.State, plan.Enforce, plan.Generation)
	}
	return identity
}
