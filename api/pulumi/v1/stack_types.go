package v1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// StackKind is the kind of a Stack.
const StackKind = "Stack"

// WorkspaceReclaimPolicy defines what happens to the Workspace of a Stack after a successful update.
// +kubebuilder:validation:Enum=Retain;Delete
type WorkspaceReclaimPolicy string

const (
	// WorkspaceReclaimRetain keeps the Workspace for the next update. It is the default.
	WorkspaceReclaimRetain WorkspaceReclaimPolicy = "Retain"

	// WorkspaceReclaimDelete deletes the Workspace.
	WorkspaceReclaimDelete WorkspaceReclaimPolicy = "Delete"
)

// UpdateOn defines which changes of the source run an update.
// +kubebuilder:validation:Enum=Content;Revision
type UpdateOn string

const (
	// UpdateOnContent runs an update when a file that the stack consists of changes. It is the default.
	UpdateOnContent UpdateOn = "Content"

	// UpdateOnRevision runs an update for every new revision, even if the content is the same.
	UpdateOnRevision UpdateOn = "Revision"
)

// StackSpec describes a Pulumi stack: where its program is, how it is configured and how it is kept up to date.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.resyncFrequency) && has(self.resyncFrequencySeconds))",message="set either resyncFrequencySeconds or resyncFrequency, not both"
type StackSpec struct {
	// Stack is the name of the stack: "org/project/dev", "org/dev", or "dev" without an organization.
	// +required
	Stack string `json:"stack"`

	// Backend is the URL of the state backend, for example "s3://my-bucket". Defaults to Pulumi Cloud.
	// +optional
	Backend string `json:"backend,omitempty"`

	// AccessTokenSecret is deprecated: use envRefs. It is the name of a Secret whose key accessToken is used as
	// PULUMI_ACCESS_TOKEN.
	// +optional
	AccessTokenSecret string `json:"accessTokenSecret,omitempty"`

	// PulumiCloud logs each operation in to Pulumi Cloud, with a token of the ServiceAccount instead of an access token in a Secret.
	// +optional
	PulumiCloud *autov1alpha1.PulumiCloud `json:"pulumiCloud,omitempty"`

	// SecretsProvider encrypts the secrets of the stack, for example "awskms://alias/my-key", "passphrase", or "default" for that of the
	// backend. A stack with another provider is re-encrypted before the next update. If it is not set, a stack keeps its provider.
	// +optional
	SecretsProvider string `json:"secretsProvider,omitempty"`

	// ServiceAccountName is the service account of the workspace pod. Defaults to the controller flag --default-service-account, or else to
	// "default".
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	GitSource `json:",inline"`

	// FluxSource is a program in the artifact of a Flux source.
	// +optional
	FluxSource *FluxSource `json:"fluxSource,omitempty"`

	// ProgramRef is a program in a Program object.
	// +optional
	ProgramRef *ProgramReference `json:"programRef,omitempty"`

	// SourcePaths lists the files and directories that the stack consists of, relative to the root of the source, besides the directory of
	// Pulumi.yaml. If it is set, a commit that changes none of them runs no update; only the revision in the status changes. Defaults to the
	// whole source. A pattern can have the wildcards of a shell, and ** for any number of directories.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +optional
	SourcePaths []string `json:"sourcePaths,omitempty"`

	// UpdateOn defines which changes of the source run an update: Content, the default, means changes of a file that the stack consists of,
	// Revision means every new commit or artifact.
	// +optional
	UpdateOn UpdateOn `json:"updateOn,omitempty"`

	// RequireVerified runs only artifacts that Flux has verified. The source must be a GitRepository or an OCIRepository whose spec.verify
	// names a key or an identity.
	// +optional
	RequireVerified bool `json:"requireVerified,omitempty"`

	// Config is the configuration of the stack. Values are strings, numbers, booleans, objects or arrays. A key without a
	// namespace belongs to the project. Values other than strings need the pulumi CLI 3.202.0 or newer.
	// +optional
	Config map[string]apiextensionsv1.JSON `json:"config,omitempty"`

	// ConfigRef takes configuration values from ConfigMaps.
	// +optional
	ConfigRef map[string]ConfigMapRef `json:"configRef,omitempty"`

	// Secrets is deprecated: use secretsRef. It is secret configuration, in plain text.
	// +optional
	Secrets map[string]string `json:"secrets,omitempty"`

	// SecretRefs takes secret configuration values from Secrets.
	// +optional
	SecretRefs map[string]ResourceRef `json:"secretsRef,omitempty"`

	// Environment lists Pulumi ESC environments to import.
	// +listType=atomic
	// +optional
	Environment []string `json:"environment,omitempty"`

	// EnvRefs sets environment variables of Pulumi and the program, from Secrets or literal values.
	// +optional
	EnvRefs map[string]ResourceRef `json:"envRefs,omitempty"`

	// Envs is deprecated: use envRefs. It lists ConfigMaps whose keys become environment variables.
	// +optional
	Envs []string `json:"envs,omitempty"`

	// SecretEnvs is deprecated: use envRefs. It lists Secrets whose keys become environment variables.
	// +optional
	SecretEnvs []string `json:"envSecrets,omitempty"`

	// Suspend stops all work on the Stack until it is false again. A running update continues, unless the annotation pulumi.com/cancel-update:
	// "true" stops it.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// DependsOn lists Stacks and objects of other kinds that must be ready before this one is updated, optionally with a CEL expression for
	// when they are ready.
	// +optional
	DependsOn []DependencyReference `json:"dependsOn,omitempty"`

	// Prerequisites lists Stacks, in the same namespace, that must be up to date before this one is updated. A prerequisite that
	// is out of date is updated first.
	// +optional
	Prerequisites []PrerequisiteRef `json:"prerequisites,omitempty"`

	// Timeout of one update, for example "1h", after which it is stopped gracefully. If it is not set, there is no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="timeout must be a duration such as 1h30m, and not negative"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// RetryInterval is the time between two attempts of a failed update, for example "5m". If it is not set, the first retry starts after 10
	// seconds, and each further one after three times as long, up to retryMaxBackoffDurationSeconds.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="retryInterval must be a duration such as 1h30m, and not negative"
	// +optional
	RetryInterval *metav1.Duration `json:"retryInterval,omitempty"`

	// RetryMaxBackoffDurationSeconds is the longest time between two attempts of a failed update, in seconds. Values below 1 mean the
	// default, 86400 (one day).
	// +optional
	RetryMaxBackoffDurationSeconds int64 `json:"retryMaxBackoffDurationSeconds,omitempty"`

	// RetryOnUpdateConflict retries every 10 to 15 seconds, instead of with backoff, while another process holds the lock of the stack.
	// +optional
	RetryOnUpdateConflict bool `json:"retryOnUpdateConflict,omitempty"`

	// ContinueResyncOnCommitMatch runs an update every resync interval, even if nothing changed.
	// +optional
	ContinueResyncOnCommitMatch bool `json:"continueResyncOnCommitMatch,omitempty"`

	// ResyncFrequencySeconds is the resync interval in seconds: the time between two checks of a git branch, and between two updates with
	// continueResyncOnCommitMatch. Defaults to 60; smaller values count as 60.
	// +optional
	ResyncFrequencySeconds int64 `json:"resyncFrequencySeconds,omitempty"`

	// ResyncFrequency is the resync interval as a duration, for example "5m". Set it or resyncFrequencySeconds, not both.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="resyncFrequency must be a duration such as 1h30m, and not negative"
	// +optional
	ResyncFrequency *metav1.Duration `json:"resyncFrequency,omitempty"`

	// Refresh the state from the resources before each update, preview or destroy.
	// +optional
	Refresh bool `json:"refresh,omitempty"`

	// ExpectNoRefreshChanges, together with refresh, fails an update or preview if the refresh finds changes that were made outside of Pulumi.
	// Nothing is changed then, not even the state, so the next attempt finds them again.
	// +optional
	ExpectNoRefreshChanges bool `json:"expectNoRefreshChanges,omitempty"`

	// Preview runs previews only; nothing is changed. Ready then means that the preview succeeded.
	// +optional
	Preview bool `json:"preview,omitempty"`

	// Targets lists the URNs of the resources to update or preview. Defaults to all resources.
	// +optional
	Targets []string `json:"targets,omitempty"`

	// TargetDependents also updates the resources that depend on the targets.
	// +optional
	TargetDependents bool `json:"targetDependents,omitempty"`

	// UseLocalStackOnly never creates the stack: it must exist.
	// +optional
	UseLocalStackOnly bool `json:"useLocalStackOnly,omitempty"`

	// InitOnCreate is deprecated and has no effect: a stack that does not exist is created, unless useLocalStackOnly is set.
	// +optional
	InitOnCreate bool `json:"initOnCreate,omitempty"`

	// DestroyOnFinalize destroys the stack's resources when the Stack is deleted. Otherwise they are kept.
	// +optional
	DestroyOnFinalize bool `json:"destroyOnFinalize,omitempty"`

	// DestroyAfterDependents delays the destroy until no other Stack names this one in its dependsOn, prerequisites or inputs, so that Stacks
	// that are deleted together are destroyed in reverse order. Stacks that depend on each other do not wait. It has no effect without
	// destroyOnFinalize.
	// +optional
	DestroyAfterDependents bool `json:"destroyAfterDependents,omitempty"`

	// RunProgram runs the program when the stack is destroyed, to get fresh provider configuration.
	// +optional
	RunProgram bool `json:"runProgram,omitempty"`

	// WorkspaceReclaimPolicy defines what happens to the Workspace after a successful update: Retain, the default, or Delete.
	// +optional
	WorkspaceReclaimPolicy WorkspaceReclaimPolicy `json:"workspaceReclaimPolicy,omitempty"`

	// WorkspaceIdleTimeout is how long the Workspace can be idle before its pod is removed, for example "30m". The next update starts the pod
	// again. 0s keeps the pod. Defaults to the controller flag --workspace-idle-timeout.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="workspaceIdleTimeout must be a duration such as 1h30m, and not negative"
	// +optional
	WorkspaceIdleTimeout *metav1.Duration `json:"workspaceIdleTimeout,omitempty"`

	// UpdateHistoryLimit is how many ended Updates are kept, 0 to 100. Defaults to 10.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	UpdateHistoryLimit *int32 `json:"updateHistoryLimit,omitempty"`

	// Drift checks, between the updates, for changes of resources that were made outside of Pulumi. If it is not set, there are no checks.
	// +optional
	Drift *DriftSpec `json:"drift,omitempty"`

	// Approval makes each change wait for the approval of a plan, which is then carried out exactly. If it is not set, changes are made at
	// once.
	// +optional
	Approval *ApprovalPolicy `json:"approval,omitempty"`

	// Outputs are Secrets and ConfigMaps that the controller writes with outputs of the stack, after each update that succeeded. The controller
	// needs the right to write them, which it does not have by default.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +optional
	Outputs []OutputObject `json:"outputs,omitempty"`

	// Inputs are configuration values that are read from outputs of other Stacks, Secrets and ConfigMaps when an operation starts. The Stack
	// depends on the Stacks that are named here, and a change of a value causes an update.
	// +kubebuilder:validation:MaxItems=100
	// +listType=map
	// +listMapKey=key
	// +optional
	Inputs []autov1alpha1.Input `json:"inputs,omitempty"`

	// ShareOutputs lets Stacks of other namespaces use outputs of this one in spec.inputs, where the controller allows references to other
	// namespaces.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	ShareOutputs []OutputShare `json:"shareOutputs,omitempty"`

	// RolloutRef names the StackRollout from which the Stack gets the revisions of its source. Without it, the Stack gets each revision at
	// once.
	// +optional
	RolloutRef *RolloutReference `json:"rolloutRef,omitempty"`

	// Windows say when updates may begin that change something: an up, a destroy, a correction of drift. Previews, plans and checks for drift
	// may begin at any time, and what runs goes on. Without windows, updates may always begin.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	Windows []autov1alpha1.Window `json:"windows,omitempty"`

	// WorkspaceTemplate customizes the Workspace of the Stack.
	// +optional
	WorkspaceTemplate *WorkspaceTemplate `json:"workspaceTemplate,omitempty"`

	// UpdateTemplate customizes the Updates of the Stack.
	// +optional
	UpdateTemplate *UpdateTemplate `json:"updateTemplate,omitempty"`
}

// RolloutReference names a StackRollout.
type RolloutReference struct {
	// Name of the StackRollout.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// Namespace of the StackRollout, which has to admit the Stack. Defaults to that of the Stack.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// PrerequisiteRef names a Stack that must be up to date.
type PrerequisiteRef struct {
	// Name of the Stack.
	// +required
	Name string `json:"name"`

	// Requirement is an additional requirement.
	// +optional
	Requirement *Requirement `json:"requirement,omitempty"`
}

// Requirement defines what is required of a prerequisite.
type Requirement struct {
	// SucceededWithinDuration is the longest time since the last update succeeded, for example "1h". The minimum is 10s; smaller values count
	// as 10s.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration(self)",message="succeededWithinDuration must be a duration such as 1h30m"
	// +optional
	SucceededWithinDuration *metav1.Duration `json:"succeededWithinDuration,omitempty"`
}

// Stack defines a Pulumi stack and how it is kept up to date.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 42",message="the name of a Stack must not be longer than 42 characters"
// +kubebuilder:printcolumn:name="Stack",type=string,priority=10,JSONPath=`.spec.stack`
// +kubebuilder:printcolumn:name="Last Update",type=string,JSONPath=`.status.lastUpdate.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.status.lastUpdate.lastResyncTime`
// +kubebuilder:printcolumn:name="Last Commit",type=string,priority=10,JSONPath=`.status.lastUpdate.lastAttemptedCommit`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reconciling",type=string,JSONPath=`.status.conditions[?(@.type=="Reconciling")].reason`
// +kubebuilder:printcolumn:name="Stalled",type=string,JSONPath=`.status.conditions[?(@.type=="Stalled")].reason`
// +kubebuilder:printcolumn:name="Permalink",type=string,JSONPath=`.status.lastUpdate.permalink`
// +kubebuilder:printcolumn:name="Plan",type=string,priority=10,JSONPath=`.status.plan.state`
// +kubebuilder:printcolumn:name="Changes",type=string,priority=10,JSONPath=`.status.plan.summary`
type Stack struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired stack.
	// +optional
	Spec StackSpec `json:"spec,omitempty"`

	// Status is what the controller observed.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status StackStatus `json:"status,omitempty"`
}

// StackList is a list of Stacks.
//
// +kubebuilder:object:root=true
type StackList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Stack `json:"items"`
}
