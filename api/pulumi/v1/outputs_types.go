package v1

import (
	"k8s.io/apimachinery/pkg/types"
)

// OutputObjectKind is a kind of object that can have outputs.
// +kubebuilder:validation:Enum=Secret;ConfigMap
type OutputObjectKind string

const (
	// OutputSecret is a Secret. It is the default.
	OutputSecret OutputObjectKind = "Secret"

	// OutputConfigMap is a ConfigMap. It never has a secret output.
	OutputConfigMap OutputObjectKind = "ConfigMap"
)

// OutputDeletionPolicy defines what becomes of an object with outputs that is no longer asked for.
// +kubebuilder:validation:Enum=Delete;Retain
type OutputDeletionPolicy string

const (
	// OutputDelete deletes the object. It is the default.
	OutputDelete OutputDeletionPolicy = "Delete"

	// OutputRetain leaves the object as it is.
	OutputRetain OutputDeletionPolicy = "Retain"
)

// OutputFormat is how the value of an output is written.
// +kubebuilder:validation:Enum=Text;JSON
type OutputFormat string

const (
	// OutputText writes strings as they are, and all other values as JSON. It is the default.
	OutputText OutputFormat = "Text"

	// OutputJSON writes all values as JSON.
	OutputJSON OutputFormat = "JSON"
)

// OutputObject is a Secret or a ConfigMap, in the namespace of the Stack, that the controller writes with outputs of the stack.
//
// +kubebuilder:validation:XValidation:rule="!has(self.type) || !has(self.kind) || self.kind == 'Secret'",message="only a Secret has a type"
type OutputObject struct {
	// Kind of the object: Secret, the default, or ConfigMap. A ConfigMap never has an output that is secret.
	// +kubebuilder:default=Secret
	// +optional
	Kind OutputObjectKind `json:"kind,omitempty"`

	// Name of the object. An object of this name that the Stack has not created is never changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
	// +required
	Name string `json:"name"`

	// Type of a Secret. Defaults to Opaque. If it changes, the Secret is created anew.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Type string `json:"type,omitempty"`

	// Labels of the object. The label reconcile.fluxcd.io/watch: Enabled is added, unless it is given here: by it, Flux's controllers notice
	// changes at once.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations of the object.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Keys of the object. Without any, the object has a key for each output; a ConfigMap for each output that is not secret.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=key
	// +optional
	Keys []OutputKey `json:"keys,omitempty"`

	// DeletionPolicy defines what happens when the Stack is deleted, or no longer names the object: Delete, the default, deletes the object,
	// Retain leaves it as it is.
	// +optional
	DeletionPolicy OutputDeletionPolicy `json:"deletionPolicy,omitempty"`
}

// OutputKey is a key of an object, with an output as its value.
//
// +kubebuilder:validation:XValidation:rule="has(self.output) != (has(self.all) && self.all)",message="set either output or all"
// +kubebuilder:validation:XValidation:rule="!has(self.path) || has(self.output)",message="path is a path in an output"
type OutputKey struct {
	// Key in the data of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern="^[-._a-zA-Z0-9]+$"
	// +required
	Key string `json:"key"`

	// Output is the name of the output.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Output string `json:"output,omitempty"`

	// Path is a path in a structured output, such as "cluster.nodes[0].ip".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Path string `json:"path,omitempty"`

	// All makes the value a JSON object with all outputs; in a ConfigMap, with all outputs that are not secret.
	// +optional
	All bool `json:"all,omitempty"`

	// Format of the value: Text, the default, writes strings as they are and all other values as JSON. JSON always writes JSON.
	// +optional
	Format OutputFormat `json:"format,omitempty"`

	// Optional leaves the key out when there is no such output. Otherwise the object is not written then, and keeps what it has.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// OutputShare lets the Stacks of some namespaces use some outputs.
type OutputShare struct {
	// Namespaces are the names of namespaces. "*" stands for any text in a name.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern="^[-a-z0-9*]+$"
	// +listType=atomic
	// +required
	Namespaces []string `json:"namespaces"`

	// Outputs are the names of the outputs.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +required
	Outputs []string `json:"outputs"`

	// Secrets also shares those that are secret, or contain a secret.
	// +optional
	Secrets bool `json:"secrets,omitempty"`
}

// StoredOutputs says where the outputs of a stack are stored.
type StoredOutputs struct {
	// Update is the name of the Update that set the outputs, and UID its UID.
	Update string    `json:"update"`
	UID    types.UID `json:"uid"`

	// Secret is the name of the Secret with the outputs; empty when the stack has none.
	// +optional
	Secret string `json:"secret,omitempty"`
}

// OutputObjectsStatus is what was written for spec.outputs.
type OutputObjectsStatus struct {
	// Update is the name of the Update whose outputs were written. It is kept as long as the Stack has spec.outputs.
	// +optional
	Update string `json:"update,omitempty"`

	// UID of that Update.
	// +optional
	UID types.UID `json:"uid,omitempty"`

	// SpecDigest identifies the spec.outputs that they were written for.
	// +optional
	SpecDigest string `json:"specDigest,omitempty"`

	// Objects are those that were written and are still asked for.
	// +listType=atomic
	// +optional
	Objects []WrittenOutputObject `json:"objects,omitempty"`
}

// WrittenOutputObject is an object that the Stack has created.
type WrittenOutputObject struct {
	// Kind of the object.
	Kind OutputObjectKind `json:"kind"`

	// Name of the object.
	Name string `json:"name"`

	// UID of the object. An object of the same name with another UID is not one of the Stack.
	UID types.UID `json:"uid"`

	// ResourceVersion of the object after it was written. If it has another one, it was edited since.
	ResourceVersion string `json:"resourceVersion"`

	// DeletionPolicy of the object when it was written.
	// +optional
	DeletionPolicy OutputDeletionPolicy `json:"deletionPolicy,omitempty"`
}
