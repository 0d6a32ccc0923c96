package v1alpha1

import (
	"cmp"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Input is a configuration value that is read, when an operation starts, from an output of a Stack, a Secret or a ConfigMap.
//
// +kubebuilder:validation:XValidation:rule="has(self.stack) ? !has(self.secret) && !has(self.configMap) : has(self.secret) != has(self.configMap)",message="set exactly one of stack, secret and configMap"
type Input struct {
	// Key is the configuration key; without a namespace it belongs to the project.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Key string `json:"key"`

	// Path treats the key as a path into a structured value, as `pulumi config set --path` does.
	// +optional
	Path bool `json:"path,omitempty"`

	// Stack is an output of a Stack. If the output is secret, or a part of it is, the value is secret.
	// +optional
	Stack *StackOutput `json:"stack,omitempty"`

	// Secret is a key of a Secret in the same namespace. The value is secret.
	// +optional
	Secret *KeyReference `json:"secret,omitempty"`

	// ConfigMap is a key of a ConfigMap in the same namespace.
	// +optional
	ConfigMap *KeyReference `json:"configMap,omitempty"`

	// JSON parses a text as JSON, so that it becomes a structured value. An output that is no text is one in any case.
	// +optional
	JSON bool `json:"json,omitempty"`

	// Default is the value when there is no such object, key or output: a string, number, boolean, object or array. Without it, the operation
	// waits.
	// +optional
	Default *apiextensionsv1.JSON `json:"default,omitempty"`

	// AsSecret makes the value secret wherever it comes from, also the default.
	// +optional
	AsSecret bool `json:"asSecret,omitempty"`
}

// StackOutput names an output of a Stack, as its last successful update left it.
type StackOutput struct {
	// Name of the Stack.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// Namespace of the Stack. Defaults to the same namespace. The Stack of another one has to share the output, with spec.shareOutputs.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Output is the name of the output.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Output string `json:"output"`

	// Path is a path in a structured output, such as "cluster.nodes[0].ip".
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Path string `json:"path,omitempty"`
}

// Of returns the name of the Stack whose output an input in the namespace is.
func (o *StackOutput) Of(namespace string) types.NamespacedName {
	return types.NamespacedName{Namespace: cmp.Or(o.Namespace, namespace), Name: o.Name}
}

// StacksOf returns the names of the Stacks whose outputs the inputs in the namespace are, in the order of the inputs, each once.
func StacksOf(namespace string, inputs []Input) (names []types.NamespacedName) {
	for i := range inputs {
		if from := inputs[i].Stack; from != nil && from.Name != "" {
			if name := from.Of(namespace); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
