package pod

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// noUpdates has the StatefulSet controller leave a pod alone. An apply of that to a StatefulSet with another strategy fails,
// because it leaves the options of that one, which only have a default, where they are.
const noUpdates = `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`

// takeOver makes an object that other programs applied what is wanted, without anything that only they had wanted: a container,
// a variable. First it says the same in their names, so that there is no moment with a mixture, and in the end that they want
// nothing any more.
func (r *Runtime) takeOver(ctx context.Context, wanted *unstructured.Unstructured) error {
	present := &metav1.PartialObjectMetadata{}
	present.SetGroupVersionKind(wanted.GroupVersionKind())
	if err := r.options.Live.Get(ctx, client.ObjectKeyFromObject(wanted), present); err != nil {
		return fmt.Errorf("read %s %s: %w", wanted.GetKind(), wanted.GetName(), err)
	}
	if wanted.GetKind() == "StatefulSet" {
		if err := r.options.Client.Patch(ctx, present.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(noUpdates)), client.FieldOwner(fieldOwner)); err != nil {
			return fmt.Errorf("take over %s %s: %w", wanted.GetKind(), wanted.GetName(), err)
		}
	}
	others := otherManagers(present)
	for _, manager := range others {
		if err := r.applyAs(ctx, wanted.DeepCopy(), manager); err != nil {
			return err
		}
	}
	if err := r.applyAs(ctx, wanted, fieldOwner); err != nil {
		return err
	}
	for _, manager := range others {
		nothing := &unstructured.Unstructured{}
		nothing.SetGroupVersionKind(wanted.GroupVersionKind())
		nothing.SetNamespace(wanted.GetNamespace())
		nothing.SetName(wanted.GetName())
		if err := r.applyAs(ctx, nothing, manager); err != nil {
			return err
		}
		nothing.DeepCopyInto(wanted)
	}
	return nil
}

// otherManagers are the names of the programs, other than this, that applied the object.
func otherManagers(object metav1.Object) []string {
	var names []string
	for _, entry := range object.GetManagedFields() {
		if entry.Manager != fieldOwner && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" {
			names = append(names, entry.Manager)
		}
	}
	return names
}

// conflictError says that an object cannot be used because of whose it is.
type conflictError struct {
	// ending says that the object is on its way out.
	ending  bool
	message string
}

func (e *conflictError) Error() string { return e.message }

// checkOwner tells whether the object may be written: one without an owner becomes the workspace's.
func checkOwner(workspace *autov1alpha1.Workspace, object client.Object) error {
	owner := metav1.GetControllerOf(object)
	switch {
	case owner != nil && owner.UID != workspace.UID && owner.Kind == autov1alpha1.WorkspaceKind && owner.Name == workspace.Name:
		return &conflictError{ending: true, message: fmt.Sprintf("%s of an earlier workspace of this name has to go first", object.GetName())}
	case owner != nil && owner.UID != workspace.UID:
		return &conflictError{message: fmt.Sprintf("%s belongs to %s %s; delete it or choose another name for the workspace",
			object.GetName(), owner.Kind, owner.Name)}
	case object.GetDeletionTimestamp() != nil:
		return &conflictError{ending: true, message: fmt.Sprintf("%s is being deleted and will be made again", object.GetName())}
	}
	return nil
}

// asConflict returns the conflictError in the error, or nil.
func asConflict(err error) *conflictError {
	var conflict *conflictError
	if errors.As(err, &conflict) {
		return conflict
	}
	return nil
}
