package v1alpha1

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// EmbeddedObjectMeta is the part of an object's metadata that a template may set.
type EmbeddedObjectMeta struct {
	// Labels to add.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to add.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// EmbeddedPodTemplateSpec is merged into the pod template of a Workspace.
type EmbeddedPodTemplateSpec struct {
	// Metadata of the pod.
	// +optional
	Metadata EmbeddedObjectMeta `json:"metadata,omitempty,omitzero"`

	// Spec is a strategic merge patch of the pod: containers, volumes and the like are matched by name, and the container
	// "pulumi" is the one in which Pulumi runs. Nothing in it is required.
	// +optional
	Spec *EmbeddedPodSpec `json:"spec,omitempty"`
}

// EmbeddedPodSpec is a pod specification in which nothing is required: a template that only sets tolerations is valid.
type EmbeddedPodSpec struct {
	corev1.PodSpec `json:",inline"`
}

// MarshalJSON leaves out containers when there are none. A plain PodSpec would write null, which the API server refuses
// and which, in a strategic merge patch, removes every container.
func (in EmbeddedPodSpec) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		corev1.PodSpec `json:",inline"`
		Containers     []corev1.Container `json:"containers,omitempty"`
	}{PodSpec: in.PodSpec, Containers: in.Containers})
}

// EmbeddedServiceTemplateSpec is merged into the Service of a Workspace.
type EmbeddedServiceTemplateSpec struct {
	// Metadata of the Service. The controller's own labels take precedence.
	// +optional
	Metadata EmbeddedObjectMeta `json:"metadata,omitempty,omitzero"`
}
