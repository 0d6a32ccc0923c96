package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// removeEmptied removes from the Workspace the objects that have fields there and have to have none. A server-side apply makes
// null of them, which the schema refuses; where there is nothing it writes them as they are asked for.
func (r *Reconciler) removeEmptied(ctx context.Context, present *autov1alpha1.Workspace, wanted *unstructured.Unstructured) error {
	if present == nil {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(present)
	if err != nil {
		return fmt.Errorf("encode the workspace: %w", err)
	}
	paths := emptied(wanted.Object["spec"], content["spec"], "/spec")
	if len(paths) == 0 {
		return nil
	}
	type operation struct {
		Operation string `json:"op"`
		Path      string `json:"path"`
		Value     string `json:"value,omitempty"`
	}
	// The paths are those of this version.
	operations := []operation{{"replace", "/metadata/resourceVersion", present.ResourceVersion}}
	for _, path := range paths {
		operations = append(operations, operation{Operation: "remove", Path: path})
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encode a change of the workspace: %w", err)
	}
	patched := present.DeepCopy()
	if err := r.Patch(ctx, patched, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("empty fields of the workspace: %w", err)
	}
	present.ResourceVersion = patched.ResourceVersion
	return nil
}

// emptied lists the paths of objects that are wanted without fields and present with some. Items of lists are told by their
// names; those without one are in lists that an apply replaces as a whole.
func emptied(wanted, present any, path string) (paths []string) {
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
			paths = append(paths, emptied(wanted[key], present[key], path+"/"+pointerEscapes.Replace(key))...)
		}
	case []any:
		items, _ := present.([]any)
		for _, item := range wanted {
			if i := slices.IndexFunc(items, func(other any) bool { return named(item) != "" && named(item) == named(other) }); i >= 0 {
				paths = append(paths, emptied(item, items[i], path+"/"+strconv.Itoa(i))...)
			}
		}
	}
	return paths
}

// pointerEscapes are those of JSON pointers.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// named returns the name of an item, or nothing.
func named(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}
