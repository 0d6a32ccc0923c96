package stack

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// reclaim deletes the Workspace of a Stack that is up to date, when the policy asks for it. It returns false when the Workspace
// is still needed, by an Update that somebody else made for it.
func (r *Reconciler) reclaim(ctx context.Context, o *observation) (done bool, err error) {
	if o.stack.GetWorkspaceReclaimPolicy() != pulumiv1.WorkspaceReclaimDelete || o.workspace == nil {
		return true, nil
	}
	if busy, err := r.inUse(ctx, o.workspace); err != nil || busy {
		return false, err
	}
	err = r.Delete(ctx, o.workspace, client.Preconditions{UID: &o.workspace.UID})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete the workspace: %w", err)
	}
	r.Event(o.stack, corev1.EventTypeNormal, eventWorkspaceDeleted, "the workspace was deleted as the reclaim policy asks")
	return true, nil
}

// foreignUpdate returns the name of an Update that runs in the Workspace and is not the Stack's own; empty when there is none.
func (r *Reconciler) foreignUpdate(ctx context.Context, stack *pulumiv1.Stack, workspace *autov1alpha1.Workspace) (string, error) {
	var list autov1alpha1.UpdateList
	if err := r.List(ctx, &list, client.InNamespace(workspace.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list the updates of the workspace: %w", err)
	}
	for i := range list.Items {
		update := &list.Items[i]
		own := slices.ContainsFunc(update.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == stack.UID })
		if update.Spec.WorkspaceName == workspace.Name && !own && update.HasStarted() && !update.IsComplete() {
			return update.Name, nil
		}
	}
	return "", nil
}

// inUse tells whether an Update of the Workspace has not ended.
func (r *Reconciler) inUse(ctx context.Context, workspace *autov1alpha1.Workspace) (bool, error) {
	var list autov1alpha1.UpdateList
	// Nothing is changed in what is looked through here, and it may be many.
	if err := r.List(ctx, &list, client.InNamespace(workspace.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list the updates of the workspace: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.WorkspaceName == workspace.Name && !list.Items[i].IsComplete() {
			return true, nil
		}
	}
	return false, nil
}
