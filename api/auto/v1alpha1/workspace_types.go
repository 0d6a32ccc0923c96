package v1alpha1

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// WorkspaceKind is the kind of a Workspace.
	WorkspaceKind = "Workspace"

	// DefaultServiceAccountName is the service account of a Workspace that does not name one, unless the controller has another default.
	DefaultServiceAccountName = "default"
)

// SecurityProfile is a profile of the Pod Security Standards.
// +kubebuilder:validation:Enum=baseline;restricted
type SecurityProfile string

const (
	// SecurityProfileBaseline allows what the baseline profile of the Pod Security Standards allows.
	SecurityProfileBaseline SecurityProfile = "baseline"

	// SecurityProfileRestricted runs as a user other than root, without privileges. It is the default.
	SecurityProfileRestricted SecurityProfile = "restricted"
)

// WorkspaceSpec describes the environment in which Pulumi runs.
type WorkspaceSpec struct {
	// ServiceAccountName is the service account of the workspace pod. Defaults to the controller flag --default-service-account, or else to
	// "default".
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// SecurityProfile is the profile of the Pod Security Standards that the pod meets: restricted, the default, or baseline.
	// +kubebuilder:default="restricted"
	// +optional
	SecurityProfile SecurityProfile `json:"securityProfile,omitempty"`

	// Image with the pulumi CLI. Defaults to the pulumi/pulumi image that fits the security profile.
	// +optional
	Image string `json:"image,omitempty"`

	// ImagePullPolicy of the image: Always, IfNotPresent or Never.
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// Git is a program in a git repository.
	// +optional
	Git *GitSource `json:"git,omitempty"`

	// Flux is a program in an artifact of a Flux source.
	// +optional
	Flux *FluxSource `json:"flux,omitempty"`

	// Local is a program in the pod, from the image or an init container.
	// +optional
	Local *LocalSource `json:"local,omitempty"`

	// ProjectInfo replaces a program that is not needed: a stack can be destroyed or refreshed from its state.
	// +optional
	ProjectInfo *ProjectInfo `json:"projectInfo,omitempty"`

	// EnvFrom sets environment variables from all keys of ConfigMaps and Secrets.
	// +listType=atomic
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`

	// Env sets environment variables. They override envFrom.
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`

	// Resources of the container in which Pulumi runs. By default it requests 64Mi of memory and 100m of CPU, without limits.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty,omitzero"`

	// PodTemplate customizes the workspace pod.
	// +optional
	PodTemplate *EmbeddedPodTemplateSpec `json:"podTemplate,omitempty"`

	// ServiceTemplate customizes the Service of the workspace pod.
	// +optional
	ServiceTemplate *EmbeddedServiceTemplateSpec `json:"serviceTemplate,omitempty"`

	// PulumiLogLevel is the verbosity of pulumi's own log, 0 (off) to 11. At high levels that log can contain secrets.
	// +kubebuilder:validation:Minimum=0
	// +optional
	PulumiLogLevel uint32 `json:"pulumiLogLevel,omitempty"`

	// Stacks are the stacks that the Workspace works on, with their configuration.
	// +listType=map
	// +listMapKey=name
	// +optional
	Stacks []WorkspaceStack `json:"stacks,omitempty"`

	// EnvFiles sets environment variables of Pulumi and the program from files of the pod. They are read each time an operation starts.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	EnvFiles []EnvFile `json:"envFiles,omitempty"`

	// PulumiCloud logs each operation in to Pulumi Cloud, with a token of the pod's ServiceAccount instead of an access token in a Secret.
	// +optional
	PulumiCloud *PulumiCloud `json:"pulumiCloud,omitempty"`

	// IdleTimeout is how long the Workspace can be idle before its pod is removed, for example "30m". The next Update starts the pod again. 0s
	// keeps the pod. Defaults to the controller flag --workspace-idle-timeout.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="idleTimeout must be a duration such as 1h30m, and not negative"
	// +optional
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`
}

// EnvFile is an environment variable whose value is the content of a file of the pod.
type EnvFile struct {
	// Name of the variable. No other field of the Workspace may set it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Name string `json:"name"`

	// Path of the file, below /var/run/secrets/, of at most 1 MiB. Only a pod has files: the process runtime refuses them.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Path string `json:"path"`
}

// secretFiles is where a pod has its projected tokens, and agentFiles has what proves the identity of its agent.
const (
	secretFiles = "/var/run/secrets/"
	agentFiles  = secretFiles + "stack-controller"
)

// CheckEnvFile returns an error for the user unless the path is one of a file that an environment variable may be set from.
func CheckEnvFile(name string) error {
	switch {
	case !strings.HasPrefix(name, secretFiles) || path.Clean(name) != name:
		return fmt.Errorf("the path of a file must begin with %s, and have no . or .. in it", secretFiles)
	case name == agentFiles || strings.HasPrefix(name, agentFiles+"/"):
		return fmt.Errorf("the files below %s are those of the agent", agentFiles)
	}
	return nil
}

// WorkspaceStack is a stack with its configuration.
type WorkspaceStack struct {
	// Name of the stack: "dev", "org/dev" or "org/project/dev".
	// +required
	Name string `json:"name"`

	// Create the stack if it does not exist. Defaults to true.
	// +optional
	Create *bool `json:"create,omitempty"`

	// SecretsProvider encrypts the secrets of the stack. A stack with another provider is re-encrypted before the next up or refresh.
	// +optional
	SecretsProvider *string `json:"secretsProvider,omitempty"`

	// Config is the configuration of the stack.
	// +listType=map
	// +listMapKey=key
	// +optional
	Config []ConfigItem `json:"config,omitempty"`

	// Inputs are configuration values that are read from outputs of Stacks, Secrets and ConfigMaps when an operation starts.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=key
	// +optional
	Inputs []Input `json:"inputs,omitempty"`

	// Environment lists Pulumi ESC environments to import.
	// +listType=atomic
	// +optional
	Environment []string `json:"environment,omitempty"`
}

// ConfigItem sets one configuration key, either to value or from valueFrom.
// +structType=atomic
type ConfigItem struct {
	// Key is the configuration key; without a namespace it belongs to the project.
	// +required
	Key string `json:"key"`

	// Path treats the key as a path into a structured value.
	// +optional
	Path *bool `json:"path,omitempty"`

	// Value is a string, number, boolean, object or array.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`

	// ValueFrom is the source of the value.
	// +optional
	ValueFrom *ConfigValueFrom `json:"valueFrom,omitempty"`

	// Secret encrypts the value in the stack's state and hides it in pulumi's output.
	// +optional
	Secret *bool `json:"secret,omitempty"`
}

// ConfigValueFrom is the source of the value of a configuration key. The first of secretKeyRef, configMapKeyRef, env and path that is set
// is used.
type ConfigValueFrom struct {
	// Env is the name of an environment variable of the operation.
	// +optional
	Env string `json:"env,omitempty"`

	// Path of a file in the workspace.
	// +optional
	Path string `json:"path,omitempty"`

	// SecretKeyRef is a key of a Secret in the namespace of the Workspace. It is read when the operation starts; nothing is
	// mounted into the pod.
	// +optional
	SecretKeyRef *KeyReference `json:"secretKeyRef,omitempty"`

	// ConfigMapKeyRef is a key of a ConfigMap in the namespace of the Workspace. It is read when the operation starts; nothing is
	// mounted into the pod.
	// +optional
	ConfigMapKeyRef *KeyReference `json:"configMapKeyRef,omitempty"`

	// JSON parses the value as JSON, so that it becomes a structured value.
	// +optional
	JSON bool `json:"json,omitempty"`
}

// KeyReference names a key of a Secret or ConfigMap in the same namespace.
type KeyReference struct {
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`

	// Key in its data.
	// +kubebuilder:validation:MinLength=1
	// +required
	Key string `json:"key"`
}

// WorkspaceStatus is the observed state of a Workspace.
type WorkspaceStatus struct {
	// ObservedGeneration is the generation of the Workspace that the conditions describe.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Address at which the agent of the Workspace is reached.
	// +optional
	Address string `json:"address,omitempty"`

	// FailedUpdate is the name of the Update whose failure the condition Ready reports: the backend rejected its credentials, the dependencies
	// of the program could not be installed, or the stack could not be selected or configured. Operations can still run, and the next one that
	// succeeds makes the Workspace ready.
	// +optional
	FailedUpdate string `json:"failedUpdate,omitempty"`

	// PulumiVersion is the version of the pulumi CLI in the Workspace, as its agent has reported last.
	// +optional
	PulumiVersion string `json:"pulumiVersion,omitempty"`

	// Conditions of the Workspace: Ready, Reconciling and Stalled.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GetConditions returns the conditions of the Workspace.
func (in *Workspace) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the Workspace.
func (in *Workspace) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// CanRunOperations reports whether there is an agent that accepts operations: the Workspace is ready, or is not ready only because the last
// operation could not be prepared.
func (in *Workspace) CanRunOperations() bool {
	return in.Status.FailedUpdate != "" || apimeta.IsStatusConditionTrue(in.Status.Conditions, WorkspaceReady)
}

// CannotHaveRun reports whether it is certain that the Update did not run: it says so itself, or it belongs to this very Workspace and the
// controller has never reached an agent of the Workspace.
func (in *Workspace) CannotHaveRun(update *Update) bool {
	return update.Annotations[NotStartedAnnotation] != "" || in.Status.PulumiVersion == "" && metav1.IsControlledBy(update, in)
}

// GetServiceAccountName returns the service account of the workspace pod, or "default" if none is set.
func (in *Workspace) GetServiceAccountName() string {
	if in.Spec.ServiceAccountName == "" {
		return DefaultServiceAccountName
	}
	return in.Spec.ServiceAccountName
}

// GetSecurityProfile returns the security profile of the workspace pod, or restricted if none is set.
func (in *Workspace) GetSecurityProfile() SecurityProfile {
	if in.Spec.SecurityProfile == "" {
		return SecurityProfileRestricted
	}
	return in.Spec.SecurityProfile
}

// Workspace is an environment in which Pulumi runs.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.address`
type Workspace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired environment.
	// +optional
	Spec WorkspaceSpec `json:"spec,omitempty"`

	// Status is what the controller observed.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status WorkspaceStatus `json:"status,omitempty"`
}

// WorkspaceList is a list of Workspaces.
//
// +kubebuilder:object:root=true
type WorkspaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Workspace `json:"items"`
}
