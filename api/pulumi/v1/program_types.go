package v1

import (
	"github.com/fluxcd/pkg/apis/meta"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProgramKind is the kind of a Program.
const ProgramKind = "Program"

// ProgramSpec is a Pulumi YAML program.
type ProgramSpec struct {
	// Configuration declares the configuration keys that the program uses.
	// +optional
	Configuration map[string]Configuration `json:"configuration,omitempty"`

	// Variables are expressions that the program refers to by name.
	// +optional
	Variables map[string]apiextensionsv1.JSON `json:"variables,omitempty"`

	// Resources of the program.
	// +optional
	Resources map[string]Resource `json:"resources,omitempty"`

	// Outputs of the stack.
	// +optional
	Outputs map[string]apiextensionsv1.JSON `json:"outputs,omitempty"`

	// Packages that the program uses, by name, each with its source.
	// +optional
	Packages map[string]string `json:"packages,omitempty"`

	// Components that the program defines.
	// +optional
	Components map[string]apiextensionsv1.JSON `json:"components,omitempty"`

	// Plugins says where plugins are loaded from.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Plugins *apiextensionsv1.JSON `json:"plugins,omitempty"`
}

// ConfigType is the type of a configuration value.
// +kubebuilder:validation:Enum=String;Number;List<Number>;List<String>
type ConfigType string

// Configuration declares a configuration key.
type Configuration struct {
	// Type of the value: String, Number, List<Number> or List<String>.
	// +optional
	Type ConfigType `json:"type,omitempty"`

	// Default value. The key is required when there is none.
	// +optional
	Default *apiextensionsv1.JSON `json:"default,omitempty"`

	// Secret hides the value in pulumi's output and encrypts it in the state.
	// +optional
	Secret bool `json:"secret,omitempty"`
}

// Resource is a resource of the program.
type Resource struct {
	// Type token of the resource, for example "aws:s3:Bucket".
	// +kubebuilder:validation:MinLength=1
	// +required
	Type string `json:"type"`

	// Name of the resource in the stack. By default it is the key of the resource in the program.
	// +optional
	Name string `json:"name,omitempty"`

	// DefaultProvider makes this provider resource the default one of its package.
	// +optional
	DefaultProvider bool `json:"defaultProvider,omitempty"`

	// Properties of the resource.
	// +optional
	Properties map[string]apiextensionsv1.JSON `json:"properties,omitempty"`

	// Options of the resource.
	// +optional
	Options *ResourceOptions `json:"options,omitempty"`

	// Get reads an existing resource instead of managing one.
	// +optional
	Get *ResourceGetter `json:"get,omitempty"`
}

// ResourceOptions are the options of a resource.
type ResourceOptions struct {
	// AdditionalSecretOutputs lists outputs to treat as secret.
	// +optional
	AdditionalSecretOutputs []string `json:"additionalSecretOutputs,omitempty"`

	// Aliases lists earlier names of the resource.
	// +optional
	Aliases []string `json:"aliases,omitempty"`

	// CustomTimeouts limits how long the provider may take.
	// +optional
	CustomTimeouts *CustomTimeouts `json:"customTimeouts,omitempty"`

	// DeleteBeforeReplace deletes the old resource before the new one is created.
	// +optional
	DeleteBeforeReplace bool `json:"deleteBeforeReplace,omitempty"`

	// DeletedWith is a resource whose deletion also deletes this one, so that it need not be deleted itself.
	// +optional
	DeletedWith *apiextensionsv1.JSON `json:"deletedWith,omitempty"`

	// DependsOn lists resources that this one depends on.
	// +optional
	DependsOn []apiextensionsv1.JSON `json:"dependsOn,omitempty"`

	// HideDiffs lists properties whose changes are not shown.
	// +optional
	HideDiffs []string `json:"hideDiffs,omitempty"`

	// IgnoreChanges lists properties whose changes are ignored.
	// +optional
	IgnoreChanges []string `json:"ignoreChanges,omitempty"`

	// Import adopts the existing resource with this ID.
	// +optional
	Import string `json:"import,omitempty"`

	// Parent of the resource.
	// +optional
	Parent *apiextensionsv1.JSON `json:"parent,omitempty"`

	// PluginDownloadURL is where the provider plugin is downloaded from.
	// +optional
	PluginDownloadURL string `json:"pluginDownloadURL,omitempty"`

	// Protect the resource from deletion.
	// +optional
	Protect bool `json:"protect,omitempty"`

	// Provider of the resource.
	// +optional
	Provider *apiextensionsv1.JSON `json:"provider,omitempty"`

	// Providers of the resource's children, by package.
	// +optional
	Providers map[string]apiextensionsv1.JSON `json:"providers,omitempty"`

	// ReplaceOnChanges lists properties whose changes replace the resource.
	// +optional
	ReplaceOnChanges []string `json:"replaceOnChanges,omitempty"`

	// RetainOnDelete keeps the cloud resource when it is removed from the stack.
	// +optional
	RetainOnDelete bool `json:"retainOnDelete,omitempty"`

	// Version of the provider plugin.
	// +optional
	Version string `json:"version,omitempty"`
}

// CustomTimeouts limits how long a provider may take, for example "5m".
type CustomTimeouts struct {
	// Create limits the creation.
	// +optional
	Create string `json:"create,omitempty"`

	// Update limits a change.
	// +optional
	Update string `json:"update,omitempty"`

	// Delete limits the deletion.
	// +optional
	Delete string `json:"delete,omitempty"`
}

// ResourceGetter names an existing resource.
type ResourceGetter struct {
	// ID of the resource.
	// +kubebuilder:validation:MinLength=1
	// +required
	ID string `json:"id"`

	// State that helps the provider to find the resource.
	// +optional
	State map[string]apiextensionsv1.JSON `json:"state,omitempty"`
}

// ProgramStatus is the observed state of a Program.
type ProgramStatus struct {
	// ObservedGeneration is the generation of the Program that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Artifact is the program, packed as a tarball.
	// +optional
	Artifact *meta.Artifact `json:"artifact,omitempty"`

	// Conditions of the Program: Ready, Reconciling and Stalled.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GetConditions returns the conditions of the Program.
func (in *Program) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the Program.
func (in *Program) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// GetArtifact returns the artifact of the Program, nil when there is none.
func (in *Program) GetArtifact() *meta.Artifact {
	return in.Status.Artifact
}

// Program is a Pulumi YAML program in the cluster. Stacks refer to it with programRef.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=pulumi
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.artifact.url`
type Program struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Program is the program.
	// +optional
	Program ProgramSpec `json:"program,omitempty"`

	// Status is what the controller observed.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status ProgramStatus `json:"status,omitempty"`
}

// ProgramList is a list of Programs.
//
// +kubebuilder:object:root=true
type ProgramList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Program `json:"items"`
}
