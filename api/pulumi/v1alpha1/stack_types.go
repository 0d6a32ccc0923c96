package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// StackKind is the kind of a Stack.
const StackKind = "Stack"

// Stack defines a Pulumi stack and how it is kept up to date. Use version v1 in new manifests; the fields are the same.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 42",message="the name of a Stack must not be longer than 42 characters"
type Stack struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired stack.
	// +optional
	Spec pulumiv1.StackSpec `json:"spec,omitempty"`

	// Status is what the controller observed.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status pulumiv1.StackStatus `json:"status,omitempty"`
}

// StackList is a list of Stacks.
//
// +kubebuilder:object:root=true
type StackList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Stack `json:"items"`
}
