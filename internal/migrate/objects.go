package migrate

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// objectKinds are the kinds of the objects that a Workspace has. Both controllers give these objects the same names.
var objectKinds = []schema.GroupVersionKind{
	appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	corev1.SchemeGroupVersion.WithKind("Service"),
}

// nothing is the status of an object that no controller has reconciled yet.
var nothing = struct{}{}

// handBackWorkspaces deletes the Workspaces of Stacks: everything in them is also in the backend, and the operator could not take them
// over, because it applies its own Workspaces without force and fails on fields with another owner. A Workspace that a user created stays,
// and the operator becomes the owner of its objects.
func (h *handBack) handBackWorkspaces(ctx context.Context) error {
	return h.each(ctx, &autov1alpha1.WorkspaceList{}, func(ctx context.Context, object client.Object) error {
		workspace := object.(*autov1alpha1.Workspace)
		switch {
		case isOfStack(workspace) && !isWrittenByUs(workspace), !isOfStack(workspace) && !isOurs(workspace):
			return nil
		case !isOfStack(workspace):
			return h.handBackWorkspace(ctx, workspace)
		}
		// The Workspace stays until all objects that it owns are gone, its pod included.
		err := h.Client.Delete(ctx, workspace, client.PropagationPolicy(metav1.DeletePropagationForeground), client.Preconditions{UID: &workspace.UID})
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if h.DryRun {
			h.did(workspace, "deleted, with its StatefulSet, Service and pod")
			return nil
		}
		h.leaving = append(h.leaving, workspace)
		return nil
	})
}

// isOfStack reports whether the Workspace or Update was created for a Stack.
func isOfStack(object client.Object) bool {
	return object.GetLabels()[pulumiv1.ComponentLabel] == pulumiv1.ComponentStack ||
		slices.ContainsFunc(object.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return owner.Kind == pulumiv1.StackKind })
}

// handBackWorkspace hands back a Workspace that a user created.
func (h *handBack) handBackWorkspace(ctx context.Context, workspace *autov1alpha1.Workspace) error {
	h.did(workspace, "handed back, its pod is replaced by the operator")
	for _, kind := range objectKinds {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		err := h.Client.Get(ctx, client.ObjectKey{Namespace: workspace.Namespace, Name: podspec.ObjectName(workspace)}, object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read its %s: %w", kind.Kind, err)
		}
		if err != nil || !metav1.IsControlledBy(object, workspace) {
			continue
		}
		if err := h.assign(ctx, object); err != nil {
			return err
		}
	}
	return h.clearStatus(ctx, workspace)
}

// clearStatus removes the status, so that the operator writes its own.
func (h *handBack) clearStatus(ctx context.Context, object client.Object) error {
	if err := h.replaceStatus(ctx, object, nothing); err != nil {
		return err
	}
	return h.disownStatus(ctx, object)
}

// awaitWorkspaces waits until the deleted Workspaces and their objects are gone. By then any operation that requireNoOperation did not find
// has ended, too.
func (h *handBack) awaitWorkspaces(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, h.PollInterval, true, func(ctx context.Context) (bool, error) {
		for len(h.leaving) > 0 {
			workspace, found := h.leaving[0], &autov1alpha1.Workspace{}
			err := h.Client.Get(ctx, client.ObjectKeyFromObject(workspace), found)
			if err == nil && found.UID != workspace.UID {
				return false, fmt.Errorf("the Workspace %s was created again: a stack-controller runs. Stop it and try again", client.ObjectKeyFromObject(workspace))
			}
			if !apierrors.IsNotFound(err) {
				return false, err
			}
			h.say(workspace, "deleted")
			h.leaving = h.leaving[1:]
		}
		return true, nil
	})
	if ctx.Err() != nil && len(h.leaving) > 0 {
		return fmt.Errorf("%d Workspaces are not gone yet, because their pods run: %w; try again later", len(h.leaving), context.Cause(ctx))
	}
	return err
}

// handBackUpdates removes the finalizer of Updates, because the operator could not: another field manager owns it. An Update that was not
// started is deleted if a Stack created it; the operator creates its own. One that a user created is kept, and the operator runs it. But it
// is deleted if it has previewOnly, savePlan or plan: the operator does not know these fields, so it would change resources although only a
// preview or a saved plan was wanted.
func (h *handBack) handBackUpdates(ctx context.Context) error {
	return h.each(ctx, &autov1alpha1.UpdateList{}, func(ctx context.Context, object client.Object) error {
		update := object.(*autov1alpha1.Update)
		if !needsPlan(update) && !isWrittenByUs(update) {
			return nil
		}
		if err := h.releaseUpdate(ctx, update); err != nil {
			return err
		}
		switch {
		case update.IsComplete():
		case isOfStack(update), needsPlan(update):
			h.did(update, "deleted, it was not started")
			return h.Client.Delete(ctx, update, client.Preconditions{UID: &update.UID})
		case isOurs(update):
			h.did(update, "handed back, it was not started")
			return h.clearStatus(ctx, update)
		}
		return nil
	})
}

// needsPlan reports whether the Update only previews, or saves or follows a plan, which the operator does not do.
func needsPlan(update *autov1alpha1.Update) bool {
	return ptr.Deref(update.Spec.PreviewOnly, false) || update.SavesPlan() || update.Spec.Plan != nil
}

// releaseUpdate removes the finalizer.
func (h *handBack) releaseUpdate(ctx context.Context, update *autov1alpha1.Update) error {
	before := update.DeepCopy()
	if !controllerutil.RemoveFinalizer(update, pulumiv1.Finalizer) {
		return nil
	}
	locked := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := h.Client.Patch(ctx, update, locked, patch.FieldOwner); err != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	h.did(update, "released from its finalizer")
	return nil
}

// handBackPrograms clears the status of Programs, because the operator would try to use the artifact in it, whose URL no server has. A
// Program that the operator wrote has no conditions and is left as it is.
func (h *handBack) handBackPrograms(ctx context.Context) error {
	return h.each(ctx, &pulumiv1.ProgramList{}, func(ctx context.Context, object client.Object) error {
		program := object.(*pulumiv1.Program)
		if len(program.Status.Conditions) == 0 {
			return nil
		}
		if err := h.replaceStatus(ctx, program, nothing); err != nil {
			return err
		}
		h.did(program, "handed back without a status")
		return nil
	})
}
