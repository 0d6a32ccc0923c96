package v1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// TemplateMetadata is the metadata of a template. Labels and annotations are added to the object; the other fields are accepted,
// so that a whole object can be used as a template, and have no effect.
type TemplateMetadata struct {
	// Labels to add.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to add.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Name has no effect.
	// +optional
	Name string `json:"name,omitempty"`

	// GenerateName has no effect.
	// +optional
	GenerateName string `json:"generateName,omitempty"`

	// Namespace has no effect.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Finalizers have no effect.
	// +optional
	Finalizers []string `json:"finalizers,omitempty"`

	// OwnerReferences have no effect.
	// +optional
	OwnerReferences []apiextensionsv1.JSON `json:"ownerReferences,omitempty"`

	// UID has no effect.
	// +optional
	UID string `json:"uid,omitempty"`

	// ResourceVersion has no effect.
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// Generation has no effect.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// CreationTimestamp has no effect.
	// +nullable
	// +optional
	CreationTimestamp *string `json:"creationTimestamp,omitempty"`

	// DeletionTimestamp has no effect.
	// +nullable
	// +optional
	DeletionTimestamp *string `json:"deletionTimestamp,omitempty"`

	// DeletionGracePeriodSeconds has no effect.
	// +nullable
	// +optional
	DeletionGracePeriodSeconds *int64 `json:"deletionGracePeriodSeconds,omitempty"`
}

// WorkspaceTemplate is merged into the Workspace that the controller creates for a Stack.
type WorkspaceTemplate struct {
	// APIVersion has no effect.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind has no effect.
	// +optional
	Kind string `json:"kind,omitempty"`

	// Metadata of the Workspace.
	// +optional
	Metadata *TemplateMetadata `json:"metadata,omitempty"`

	// Spec is a strategic merge patch of the Workspace's specification. Nothing in it is required.
	// +optional
	Spec *autov1alpha1.WorkspaceSpec `json:"spec,omitempty"`

	// Status has no effect.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Status *apiextensionsv1.JSON `json:"status,omitempty"`
}

// UpdateTemplate is merged into every Update that the controller creates for a Stack.
type UpdateTemplate struct {
	// APIVersion has no effect.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind has no effect.
	// +optional
	Kind string `json:"kind,omitempty"`

	// Metadata of the Update.
	// +optional
	Metadata *TemplateMetadata `json:"metadata,omitempty"`

	// Spec is a strategic merge patch of the Update's specification. Nothing in it is required.
	// +optional
	Spec *autov1alpha1.UpdateSpec `json:"spec,omitempty"`

	// Status has no effect.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Status *apiextensionsv1.JSON `json:"status,omitempty"`
}
