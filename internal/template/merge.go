package template

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Merge returns base with overlay applied to it as a strategic merge patch: fields that overlay does not set stay, lists with a key are
// merged by that key, with the new items first, and other lists are replaced. If base and overlay set fields of which an object may have
// only one, such as two kinds of volume, the result has both. Spec is a struct of the Kubernetes API. Neither argument is changed. The
// error means that overlay does not fit.
func Merge[Spec any](base Spec, overlay *Spec) (Spec, error) {
	var merged Spec
	original, err := json.Marshal(base)
	if err != nil {
		return merged, err
	}
	patch, err := patchOf(overlay)
	if err != nil {
		return merged, err
	}
	content, err := strategicpatch.StrategicMergePatch(original, patch, merged)
	if err != nil {
		return merged, err
	}
	return merged, json.Unmarshal(content, &merged)
}

// patchOf returns the patch that sets what overlay sets. A null in the JSON of a typed value is a field that is not set and has no
// omitempty, such as the containers of a PodSpec. In a patch, a null would delete the field.
func patchOf(overlay any) ([]byte, error) {
	content, err := json.Marshal(overlay)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(content, &tree); err != nil {
		return nil, err
	}
	removeNulls(tree)
	return json.Marshal(tree)
}

// removeNulls removes the keys with a null from all objects in the tree.
func removeNulls(tree any) {
	switch node := tree.(type) {
	case map[string]any:
		for key, value := range node {
			if value == nil {
				delete(node, key)
				continue
			}
			removeNulls(value)
		}
	case []any:
		for _, value := range node {
			removeNulls(value)
		}
	}
}
