package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// operatorOwner is the field manager of the Pulumi Kubernetes Operator.
	operatorOwner = "pulumi-kubernetes-operator"
	// operatorStackOwner is the operator's field manager for the status of Stacks.
	operatorStackOwner = operatorOwner + "/stack-status"

	statusSubresource = "status"
)

// operation is an operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// forVersion returns a patch that fails with a conflict if the object has changed since it was read.
func forVersion(object client.Object, path string, value any) (client.Patch, error) {
	content, err := json.Marshal([]operation{
		{"replace", "/metadata/resourceVersion", object.GetResourceVersion()},
		{"replace", path, value},
	})
	if err != nil {
		return nil, fmt.Errorf("encode a patch: %w", err)
	}
	return client.RawPatch(types.JSONPatchType, content), nil
}

// isOurs reports whether this controller has written the object's status. After the status is handed back, it returns false, so that
// nothing is done twice.
func isOurs(object client.Object) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return isOurManager(entry) && entry.Subresource == statusSubresource
	})
}

// isWrittenByUs reports whether this controller has written any field of the object.
func isWrittenByUs(object client.Object) bool {
	return slices.ContainsFunc(object.GetManagedFields(), isOurManager)
}

func isOurManager(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == string(patch.FieldOwner)
}

// replaceStatus replaces the whole status. This also removes conditions and fields that the operator does not know, whatever field manager
// owned them.
func (h *handBack) replaceStatus(ctx context.Context, object client.Object, status any) error {
	change, err := forVersion(object, "/status", status)
	if err == nil {
		err = h.Client.Status().Patch(ctx, object, change, patch.FieldOwner)
	}
	if err != nil {
		return fmt.Errorf("replace the status: %w", err)
	}
	return nil
}

// applyStatus makes the operator the owner of each field of the Stack's status, as its own server-side apply does. From then on it can
// change and remove them.
func (h *handBack) applyStatus(ctx context.Context, stack *pulumiv1.Stack, status any) error {
	content, err := json.Marshal(map[string]any{
		"apiVersion": pulumiv1.GroupVersion.String(),
		"kind":       pulumiv1.StackKind,
		"metadata":   map[string]string{"namespace": stack.Namespace, "name": stack.Name, "resourceVersion": stack.ResourceVersion},
		"status":     status,
	})
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	if err := h.Client.Status().Patch(ctx, stack, client.RawPatch(types.ApplyPatchType, content), client.FieldOwner(operatorStackOwner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the status as the operator: %w", err)
	}
	return nil
}

// disownStatus removes every owner of the status except the operator, because a field with another owner would stay when the operator
// removes it. This must be the last step for an object: see isOurs.
func (h *handBack) disownStatus(ctx context.Context, object client.Object) error {
	return h.setManagers(ctx, object, slices.DeleteFunc(slices.Clone(object.GetManagedFields()), func(entry metav1.ManagedFieldsEntry) bool {
		isOperator := entry.Manager == operatorStackOwner && entry.Operation == metav1.ManagedFieldsOperationApply
		return entry.Subresource == statusSubresource && !isOperator
	}))
}

// assign makes the operator the owner of the fields that this controller applied to the object. So an apply by the operator has no
// conflicts, and removes the fields that it does not contain.
func (h *handBack) assign(ctx context.Context, object client.Object) error {
	var entries []metav1.ManagedFieldsEntry
	found := false
	for _, entry := range object.GetManagedFields() {
		applied, ours := entry.Operation == metav1.ManagedFieldsOperationApply, isOurManager(entry) && entry.Subresource == ""
		found = found || ours
		switch {
		case ours && applied:
			entry.Manager = operatorOwner
		case ours, applied && entry.Manager == operatorOwner && entry.Subresource == "":
			continue // replaces what the operator applied before
		}
		entries = append(entries, entry)
	}
	if !found {
		return nil
	}
	return h.setManagers(ctx, object, entries)
}

// setManagers replaces the field managers. It does not use the status subresource, which ignores changes of the metadata.
func (h *handBack) setManagers(ctx context.Context, object client.Object, entries []metav1.ManagedFieldsEntry) error {
	change, err := forVersion(object, "/metadata/managedFields", entries)
	if err == nil {
		err = h.Client.Patch(ctx, object, change)
	}
	if err != nil {
		return fmt.Errorf("give the fields of %s away: %w", h.describe(object), err)
	}
	return nil
}
