package v1

import (
	"bytes"

	"github.com/fluxcd/pkg/apis/meta"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// ProgramKind is the kind of a Program.
const ProgramKind = "Program"

// ProgramSpec is a Pulumi YAML program: the content of a Pulumi.yaml, without the name of the project, which is that of the
// Program, and without its runtime, which is yaml.
//
// Fields that are not described here are kept and passed to Pulumi, whose version decides what they mean.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ProgramSpec struct {
	// Description of the project.
	// +optional
	Description string `json:"description,omitempty"`

	// Author of the project.
	// +optional
	Author string `json:"author,omitempty"`

	// Website of the project.
	// +optional
	Website string `json:"website,omitempty"`

	// License of the project.
	// +optional
	License string `json:"license,omitempty"`

	// RequiredPulumiVersion is a range of versions of the pulumi CLI, for example ">=3.200.0". Other versions refuse to run the program.
	// +optional
	RequiredPulumiVersion string `json:"requiredPulumiVersion,omitempty"`

	// Pulumi contains settings of the program.
	// +optional
	Pulumi *PulumiSettings `json:"pulumi,omitempty"`

	// Configuration declares the configuration keys that the program uses.
	// +optional
	Configuration map[string]Configuration `json:"configuration,omitempty"`

	// Config is the configuration block of a Pulumi project. A value is a default, or a declaration with type, description,
	// secret, items, and default or value. It takes precedence over configuration.
	// +optional
	Config map[string]apiextensionsv1.JSON `json:"config,omitempty"`

	// Variables are expressions that the program refers to by name.
	// +optional
	Variables map[string]apiextensionsv1.JSON `json:"variables,omitempty"`

	// Resources of the program.
	// +optional
	Resources map[string]Resource `json:"resources,omitempty"`

	// Outputs of the stack.
	// +optional
	Outputs map[string]apiextensionsv1.JSON `json:"outputs,omitempty"`

	// Packages that the program uses, by name. A value is a source, for example "terraform-provider@1.0.0", or an object with
	// source, version, parameters, extensions, checksums and pluginDownloadURL.
	// +optional
	Packages map[string]apiextensionsv1.JSON `json:"packages,omitempty"`

	// Components that the program defines.
	// +optional
	Components map[string]Component `json:"components,omitempty"`

	// Plugins defines where plugins are loaded from. It has the lists providers, languages and analyzers, whose items have name, path and
	// version.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Plugins *apiextensionsv1.JSON `json:"plugins,omitempty"`

	// Verbatim is the JSON from which the program was decoded, with every digit, every empty value and every unknown field. It is nil for a
	// program that was not decoded. Encoding ignores it and uses the other fields.
	Verbatim []byte `json:"-"`
}

// UnmarshalJSON decodes the program, and keeps its JSON in Verbatim.
func (in *ProgramSpec) UnmarshalJSON(data []byte) error {
	type plain ProgramSpec
	var decoded plain
	// A field whose name differs only in case is an unknown field, as it is for the API server.
	if err := utiljson.Unmarshal(data, &decoded); err != nil {
		return err
	}
	*in = ProgramSpec(decoded)
	in.Verbatim = bytes.Clone(data)
	return nil
}

// PulumiSettings are settings of a program.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PulumiSettings struct {
	// RequiredVersion is a range of versions of the pulumi CLI, for example ">=3.200.0". Other versions refuse to run the program.
	// +optional
	RequiredVersion string `json:"requiredVersion,omitempty"`
}

// ConfigType is the type of a configuration value: String, Number, Integer, Boolean or Object, List<…> of one of these, or array if the
// declaration has items. Case does not matter, and Int and Bool are accepted too.
//
// +kubebuilder:validation:Pattern=`^(?i)(array|string|number|int|integer|bool|boolean|object|list< *(string|number|int|integer|bool|boolean|object) *>)$`
type ConfigType string

// Configuration declares a configuration key, or an input of a component.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Configuration struct {
	// Type of the value: String, Number, Integer, Boolean or Object, List<…> of one of these, or array if the declaration has items.
	// +optional
	Type ConfigType `json:"type,omitempty"`

	// Name of the key in the configuration of the stack. Defaults to the name that the program uses.
	// +optional
	Name string `json:"name,omitempty"`

	// Default value of the key. If it is not set, the key is required.
	// +optional
	Default *apiextensionsv1.JSON `json:"default,omitempty"`

	// Value of the key.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`

	// Items declares the type of the elements of an array, in the form {type: string}.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Items *apiextensionsv1.JSON `json:"items,omitempty"`

	// Secret hides the value in pulumi's output and encrypts it in the state.
	// +optional
	Secret *bool `json:"secret,omitempty"`
}

// Component is a component that the program defines.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Component struct {
	// Description of the component.
	// +optional
	Description string `json:"description,omitempty"`

	// Pulumi contains settings of the component.
	// +optional
	Pulumi *PulumiSettings `json:"pulumi,omitempty"`

	// Inputs of the component.
	// +optional
	Inputs map[string]Configuration `json:"inputs,omitempty"`

	// Variables are expressions that the component refers to by name.
	// +optional
	Variables map[string]apiextensionsv1.JSON `json:"variables,omitempty"`

	// Resources of the component.
	// +optional
	Resources map[string]Resource `json:"resources,omitempty"`

	// Outputs of the component.
	// +optional
	Outputs map[string]apiextensionsv1.JSON `json:"outputs,omitempty"`
}

// Resource is a resource of the program.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Resource struct {
	// Type token of the resource, for example "aws:s3:Bucket".
	// +kubebuilder:validation:MinLength=1
	// +required
	Type string `json:"type"`

	// Name of the resource in the stack. Defaults to the key of the resource in the program.
	// +optional
	Name string `json:"name,omitempty"`

	// DefaultProvider makes this provider resource the default provider of its package.
	// +optional
	DefaultProvider *bool `json:"defaultProvider,omitempty"`

	// Properties of the resource: an object, or an expression whose value is an object.
	// +optional
	Properties *apiextensionsv1.JSON `json:"properties,omitempty"`

	// Options of the resource.
	// +optional
	Options *ResourceOptions `json:"options,omitempty"`

	// Get reads an existing resource instead of managing one.
	// +optional
	Get *ResourceGetter `json:"get,omitempty"`
}

// ResourceOptions are the options of a resource.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceOptions struct {
	// AdditionalSecretOutputs lists outputs to treat as secret.
	// +optional
	AdditionalSecretOutputs []string `json:"additionalSecretOutputs,omitempty"`

	// Aliases lists earlier identities of the resource: URNs, or objects with urn, name, type, parent, noParent, stack and project.
	// +optional
	Aliases *apiextensionsv1.JSON `json:"aliases,omitempty"`

	// CustomTimeouts limits how long the provider may take.
	// +optional
	CustomTimeouts *CustomTimeouts `json:"customTimeouts,omitempty"`

	// DeleteBeforeReplace deletes the old resource before the new one is created.
	// +optional
	DeleteBeforeReplace *bool `json:"deleteBeforeReplace,omitempty"`

	// DeletedWith is a resource whose deletion also deletes this one, so that it need not be deleted itself.
	// +optional
	DeletedWith *apiextensionsv1.JSON `json:"deletedWith,omitempty"`

	// DependsOn lists resources that this one depends on.
	// +optional
	DependsOn *apiextensionsv1.JSON `json:"dependsOn,omitempty"`

	// EnvVarMappings maps names of environment variables of the program to the names under which a provider reads them.
	// +optional
	EnvVarMappings *apiextensionsv1.JSON `json:"envVarMappings,omitempty"`

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

	// Protect the resource from deletion: true, false, or an expression whose value is one of them.
	// +optional
	Protect *apiextensionsv1.JSON `json:"protect,omitempty"`

	// Provider of the resource.
	// +optional
	Provider *apiextensionsv1.JSON `json:"provider,omitempty"`

	// Providers of the resource's children: a list of provider resources. An object that maps packages to providers is accepted and passed to
	// Pulumi unchanged, but Pulumi YAML expects a list.
	// +optional
	Providers *apiextensionsv1.JSON `json:"providers,omitempty"`

	// ReplaceOnChanges lists properties whose changes replace the resource.
	// +optional
	ReplaceOnChanges []string `json:"replaceOnChanges,omitempty"`

	// ReplaceWith lists resources whose replacement replaces this one.
	// +optional
	ReplaceWith *apiextensionsv1.JSON `json:"replaceWith,omitempty"`

	// ReplacementTrigger is a value whose change replaces the resource.
	// +optional
	ReplacementTrigger *apiextensionsv1.JSON `json:"replacementTrigger,omitempty"`

	// RetainOnDelete keeps the cloud resource when it is removed from the stack.
	// +optional
	RetainOnDelete *bool `json:"retainOnDelete,omitempty"`

	// Version of the provider plugin.
	// +optional
	Version string `json:"version,omitempty"`
}

// CustomTimeouts limits how long a provider may take, for example "5m".
//
// +kubebuilder:pruning:PreserveUnknownFields
type CustomTimeouts struct {
	// Create limits the time of the creation.
	// +optional
	Create string `json:"create,omitempty"`

	// Update limits the time of a change.
	// +optional
	Update string `json:"update,omitempty"`

	// Delete limits the time of the deletion.
	// +optional
	Delete string `json:"delete,omitempty"`
}

// ResourceGetter names an existing resource.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceGetter struct {
	// ID of the resource: a string, or an expression whose value is a string.
	// +required
	ID apiextensionsv1.JSON `json:"id"`

	// State that helps the provider to find the resource.
	// +optional
	State map[string]apiextensionsv1.JSON `json:"state,omitempty"`
}

// ProgramStatus is the observed state of a Program.
type ProgramStatus struct {
	// ObservedGeneration is the generation of the Program that the conditions describe.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Artifact is the program, packed as a tarball.
	// +optional
	Artifact *meta.Artifact `json:"artifact,omitempty"`

	// Conditions of the Program: Ready and Stalled.
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

// GetArtifact returns the artifact of the Program, or nil if there is none.
func (in *Program) GetArtifact() *meta.Artifact {
	return in.Status.Artifact
}

// Program is a Pulumi YAML program in the cluster. Stacks refer to it with programRef.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.artifact.url`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
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
