package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// appliedHashAnnotation on a Workspace identifies the spec that was applied, so that the controller notices when a field is not asked for
	// any longer.
	appliedHashAnnotation = "pulumi.com/applied-hash"
	// operatorFieldManager is the field manager of the Pulumi Kubernetes Operator, whose Workspaces this controller adopts.
	operatorFieldManager = "pulumi-kubernetes-operator"
)

// applyWorkspace makes the Workspace what the Stack asks for. It writes only when something differs. The source of an operation
// is in its Update: a commit does not change the Workspace.
func (r *Reconciler) applyWorkspace(ctx context.Context, o *observation, withSource bool) error {
	workspace := o.desired.workspace.DeepCopy()
	if !withSource && hasSource(o.stack) && o.stack.Status.ProjectInfo != nil {
		workspace.Spec.ProjectInfo = o.stack.Status.ProjectInfo
	}
	content, err := json.Marshal([]any{workspace.Labels, workspace.Annotations, workspace.Spec})
	if err != nil {
		return fmt.Errorf("encode the workspace: %w", err)
	}
	hash := sha256.Sum256(content)
	metav1.SetMetaDataAnnotation(&workspace.ObjectMeta, appliedHashAnnotation, hex.EncodeToString(hash[:8]))
	if isApplied(o.workspace, workspace) {
		return nil
	}
	object, err := applyConfiguration(workspace)
	if err != nil {
		return err
	}
	if o.workspace == nil {
		err = r.checkWorkspaceOwner(ctx, o)
	} else if err = r.adoptFields(ctx, o.workspace); err == nil {
		err = r.removeFields(ctx, o.workspace, object)
		// A controller with an old cache must not revert what another one wrote.
		object.SetResourceVersion(o.workspace.ResourceVersion)
	}
	if err != nil {
		return err
	}
	if err := r.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), patch.FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the workspace: %w", err)
	}
	o.workspace = &autov1alpha1.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, o.workspace); err != nil {
		return fmt.Errorf("read the applied workspace: %w", err)
	}
	return nil
}

// isApplied compares only what the Stack asks for; the API server's defaults and other owners' fields are left alone. A Workspace without an
// owner, as after a deletion of its Stack with --cascade=orphan, gets its owner again.
func isApplied(present, wanted *autov1alpha1.Workspace) bool {
	return present != nil &&
		controllerOf(present) == controllerOf(wanted) &&
		present.Annotations[appliedHashAnnotation] == wanted.Annotations[appliedHashAnnotation] &&
		equality.Semantic.DeepDerivative(wanted.Spec, present.Spec)
}

// controllerOf returns the UID of the controlling owner; empty when there is none.
func controllerOf(workspace *autov1alpha1.Workspace) types.UID {
	return ptr.Deref(metav1.GetControllerOf(workspace), metav1.OwnerReference{}).UID
}

// applyConfiguration returns the Workspace without the fields that only the API server writes.
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

// notOwnedError means that an object which the Stack needs exists already, and does not belong to the Stack. A human has to remove it, unless
// it goes by itself.
type notOwnedError struct {
	kind, name string
	// goes is why the object goes by itself; empty when it stays.
	goes string
}

func (e *notOwnedError) Error() string {
	if e.goes != "" {
		return fmt.Sprintf("waiting for the end of %s %s, which %s", e.kind, e.name, e.goes)
	}
	return fmt.Sprintf("%s %s exists already and was not made for this Stack, so it is left alone; "+
		"delete it, or choose another name for the Stack", e.kind, e.name)
}

// notOwned returns the error for an object that does not belong to the Stack. The garbage collector removes what an earlier Stack of this name
// left, and needs some time to do so.
func notOwned(stack *pulumiv1.Stack, kind string, object metav1.Object) error {
	e := &notOwnedError{kind: kind, name: object.GetName()}
	switch owner := pulumiv1.OwningStack(object); {
	case owner != nil && owner.Name == stack.Name && owner.UID != stack.UID:
		e.goes = "belongs to an earlier Stack of this name"
	case object.GetDeletionTimestamp() != nil:
		e.goes = "is being deleted"
	}
	return e
}

// goesByItself reports whether the error is about an object that is in the way and goes by itself.
func goesByItself(err error) bool {
	inTheWay, ok := errors.AsType[*notOwnedError](err)
	return ok && inTheWay.goes != ""
}

// checkWorkspaceOwner returns a *notOwnedError when there is a Workspace with the Stack's name that must not be written. It asks the API
// server, unless observeShard did: the cache does not have the Workspaces of other shards.
func (r *Reconciler) checkWorkspaceOwner(ctx context.Context, o *observation) error {
	if o.noWorkspace {
		return nil
	}
	present := &metav1.PartialObjectMetadata{}
	present.SetGroupVersionKind(autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(o.stack), present)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for another workspace of this name: %w", err)
	case !isOwn(o.stack, present):
		return notOwned(o.stack, autov1alpha1.WorkspaceKind, present)
	case !r.Shard.Has(present):
		return errOutdated
	}
	return nil
}

// jsonPatch is one step of a JSON patch.
type jsonPatch struct {
	Operation string `json:"op"`
	Path      string `json:"path"`
	Value     any    `json:"value,omitempty"`
}

// patchVersion applies the steps to the Workspace if the Workspace still has the version, and sets its new resourceVersion.
func (r *Reconciler) patchVersion(ctx context.Context, workspace *autov1alpha1.Workspace, version string, steps ...jsonPatch) error {
	content, err := json.Marshal(append([]jsonPatch{{"replace", "/metadata/resourceVersion", version}}, steps...))
	if err != nil {
		return fmt.Errorf("encode a change of the workspace: %w", err)
	}
	patched := workspace.DeepCopy()
	if err := r.Patch(ctx, patched, client.RawPatch(types.JSONPatchType, content), patch.FieldOwner); err != nil {
		return err
	}
	workspace.ResourceVersion = patched.ResourceVersion
	return nil
}

// adoptFields makes this controller the owner of the fields that the Pulumi Kubernetes Operator applied to the Workspace. Otherwise a value
// that the Stack no longer asks for would stay forever, because it belongs to another field manager. (csaupgrade of client-go does
// this for updates only, not for what another manager applied; fluxcd/pkg/ssa does, and brings kustomize and cli-utils with it.)
func (r *Reconciler) adoptFields(ctx context.Context, workspace *autov1alpha1.Workspace) error {
	if workspace.Annotations[appliedHashAnnotation] != "" {
		return nil
	}
	// The cache leaves out managedFields.
	live := &autov1alpha1.Workspace{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(workspace), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	adopted := false
	for i := range live.ManagedFields {
		entry := &live.ManagedFields[i]
		if entry.Manager == operatorFieldManager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" {
			entry.Manager, adopted = string(patch.FieldOwner), true
		}
	}
	if !adopted {
		return nil
	}
	change := jsonPatch{"replace", "/metadata/managedFields", live.ManagedFields}
	if err := r.patchVersion(ctx, workspace, live.ResourceVersion, change); err != nil {
		return fmt.Errorf("adopt the fields of the workspace: %w", err)
	}
	return nil
}

// removeFields removes from the Workspace the objects that have fields there and must have none. A server-side apply would set these
// objects to null, which the schema rejects. After they are removed, it writes them as empty objects.
func (r *Reconciler) removeFields(ctx context.Context, present *autov1alpha1.Workspace, wanted *unstructured.Unstructured) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(present)
	if err != nil {
		return fmt.Errorf("encode the workspace: %w", err)
	}
	var steps []jsonPatch
	for _, path := range objectsToEmpty(wanted.Object["spec"], content["spec"], "/spec") {
		steps = append(steps, jsonPatch{Operation: "remove", Path: path})
	}
	if len(steps) == 0 {
		return nil
	}
	// The paths are those of this version.
	if err := r.patchVersion(ctx, present, present.ResourceVersion, steps...); err != nil {
		return fmt.Errorf("remove fields of the workspace: %w", err)
	}
	return nil
}

// objectsToEmpty lists the paths of objects that are wanted without fields and present with some. Items of lists are identified by their
// names. Lists whose items have no names are replaced as a whole by an apply.
func objectsToEmpty(wanted, present any, path string) (paths []string) {
	switch wanted := wanted.(type) {
	case map[string]any:
		present, ok := present.(map[string]any)
		if !ok {
			return nil
		}
		if len(wanted) == 0 && len(present) > 0 {
			return []string{path}
		}
		for _, key := range slices.Sorted(maps.Keys(wanted)) {
			paths = append(paths, objectsToEmpty(wanted[key], present[key], path+"/"+pointerEscapes.Replace(key))...)
		}
	case []any:
		items, _ := present.([]any)
		index := make(map[string]int, len(items))
		for i, item := range slices.Backward(items) {
			index[nameOf(item)] = i // the first one of several with the name
		}
		for _, item := range wanted {
			if i, found := index[nameOf(item)]; found && nameOf(item) != "" {
				paths = append(paths, objectsToEmpty(item, items[i], path+"/"+strconv.Itoa(i))...)
			}
		}
	}
	return paths
}

// pointerEscapes escapes a key for a JSON pointer.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// nameOf returns the name of an item of a list; empty when it has none.
func nameOf(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}
