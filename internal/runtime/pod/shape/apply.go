package shape

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// ApplyConfiguration returns the object, whose type must be set, for a server-side apply: without the status that a typed
// object always has, but that only the API server writes.
func ApplyConfiguration(object runtime.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	configuration := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(configuration.Object, "status")
	return configuration, nil
}
