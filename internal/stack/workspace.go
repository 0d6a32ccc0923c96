package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// appliedHashAnnotation on a Workspace identifies the spec that was applied, so that a field which is not asked for any
// more is noticed.
const appliedHashAnnotation = "pulumi.com/applied-hash"

// applyWorkspace makes the Workspace what the Stack asks for. It writes only when something differs. The source of an operation
// is in its Update: a commit does not change the Workspace.
func (r *Reconciler) applyWorkspace(ctx context.Context, o *observation, withSource bool) error {
	workspace := o.desired.workspace.DeepCopy()
	if !withSource && hasSource(o.stack) && o.stack.Status.ProjectInfo != nil {
		workspace.Spec.ProjectInfo = o.stack.Status.ProjectInfo
	}
	hash, err := hashOf(workspace)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&workspace.ObjectMeta, appliedHashAnnotation, hash)
	if isApplied(o.workspace, workspace) {
		return nil
	}
	if err := r.inheritFields(ctx, o.workspace); err != nil {
		return err
	}
	object, err := applyConfiguration(workspace)
	if err != nil {
		return err
	}
	if err := r.removeEmptied(ctx, o.workspace, object); err != nil {
		return err
	}
	if o.workspace != nil {
		// Whoever does not know what it is now must not take back what another controller made of it.
		object.SetResourceVersion(o.workspace.ResourceVersion)
	}
	if err := r.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(fieldOwner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the workspace: %w", err)
	}
	o.workspace = &autov1alpha1.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, o.workspace); err != nil {
		return fmt.Errorf("read the applied workspace: %w", err)
	}
	return nil
}

// isApplied compares only what the Stack asks for; the API server's defaults and other owners' fields are left alone.
func isApplied(present, wanted *autov1alpha1.Workspace) bool {
	return present != nil &&
		present.Annotations[appliedHashAnnotation] == wanted.Annotations[appliedHashAnnotation] &&
		equality.Semantic.DeepDerivative(wanted.Spec, present.Spec)
}

func hashOf(workspace *autov1alpha1.Workspace) (string, error) {
	content, err := json.Marshal([]any{workspace.Labels, workspace.Annotations, workspace.Spec})
	if err != nil {
		return "", fmt.Errorf("encode the workspace: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8]), nil
}

// applyConfiguration is the Workspace without the fields that only the API server writes.
func applyConfiguration(workspace *autov1alpha1.Workspace) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(workspace)
	if err != nil {
		return nil, fmt.Errorf("encode the workspace: %w", err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))
	unstructured.RemoveNestedField(object.Object, "status")
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	return object, nil
}
