package v1

import (
	"github.com/fluxcd/pkg/apis/meta"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StackKind is the kind of a Stack.
const StackKind = "Stack"

// WorkspaceReclaimPolicy says what happens to the Workspace of a Stack after a successful update.
// +kubebuilder:validation:Enum=Retain;Delete
type WorkspaceReclaimPolicy string

const (
	// WorkspaceReclaimRetain keeps the Workspace for the next update. It is the default.
	WorkspaceReclaimRetain WorkspaceReclaimPolicy = "Retain"

	// WorkspaceReclaimDelete deletes the Workspace.
	WorkspaceReclaimDelete WorkspaceReclaimPolicy = "Delete"
)

// UpdateOn says which changes of the source run an update.
// +kubebuilder:validation:Enum=Content;Revision
type UpdateOn string

const (
	// UpdateOnContent runs an update when a file changed that the stack is made of. It is the default.
	UpdateOnContent UpdateOn = "Content"

	// UpdateOnRevision runs an update for every new revision, also of the same content.
	UpdateOnRevision UpdateOn = "Revision"
)

// StackSpec describes a Pulumi stack: where its program is, how it is configured and how it is kept up to date.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.resyncFrequency) && has(self.resyncFrequencySeconds))",message="set either resyncFrequencySeconds or resyncFrequency, not both"
type StackSpec struct {
	// Stack is the name of the stack: "org/project/dev", "org/dev", or "dev" for a backend without organizations.
	// +required
	Stack string `json:"stack"`

	// Backend is the URL of the state backend, for example "s3://my-bucket". Empty means Pulumi Cloud.
	// +optional
	Backend string `json:"backend,omitempty"`

	// AccessTokenSecret is deprecated: use envRefs. It is the name of a Secret whose key accessToken is used as
	// PULUMI_ACCESS_TOKEN.
	// +optional
	AccessTokenSecret string `json:"accessTokenSecret,omitempty"`

	// SecretsProvider encrypts the secrets of the stack, for example "awskms://alias/my-key", "passphrase", or "default" for that
	// of the backend. A stack that has another one is re-encrypted before the next update. Empty leaves an existing stack as it is.
	// +optional
	SecretsProvider string `json:"secretsProvider,omitempty"`

	// ServiceAccountName is the identity of the workspace pod. Empty means that of the controller's flag --default-service-account,
	// or else "default".
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	GitSource `json:",inline"`

	// FluxSource is a program in the artifact of a Flux source.
	// +optional
	FluxSource *FluxSource `json:"fluxSource,omitempty"`

	// ProgramRef is a program in a Program object.
	// +optional
	ProgramRef *ProgramReference `json:"programRef,omitempty"`

	// SourcePaths lists the files and directories of the source that the stack is made of, relative to its root, beside the
	// directory of Pulumi.yaml. When it is set, a commit that changes none of them does not run an update; only the revision in
	// the status follows it. Without it the whole source counts. A pattern may have the wildcards of a shell, and ** for any
	// number of directories.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +optional
	SourcePaths []string `json:"sourcePaths,omitempty"`

	// UpdateOn says which changes of the source run an update: Content (the default) means those that change a file that the stack
	// is made of, Revision means every new commit or artifact.
	// +optional
	UpdateOn UpdateOn `json:"updateOn,omitempty"`

	// RequireVerified runs nothing but what Flux has verified: the source has to be a GitRepository or an OCIRepository whose
	// spec.verify names a key or an identity, and whose artifact passed.
	// +optional
	RequireVerified bool `json:"requireVerified,omitempty"`

	// Config is the configuration of the stack. Values are strings, numbers, booleans, objects or arrays. A key without a
	// namespace belongs to the project. Values other than strings need version 3.202.0 of the pulumi CLI.
	// +optional
	Config map[string]apiextensionsv1.JSON `json:"config,omitempty"`

	// ConfigRef takes configuration values from ConfigMaps.
	// +optional
	ConfigRef map[string]ConfigMapRef `json:"configRef,omitempty"`

	// Secrets is deprecated: use secretsRef. It is secret configuration, in clear.
	// +optional
	Secrets map[string]string `json:"secrets,omitempty"`

	// SecretRefs takes secret configuration values from Secrets.
	// +optional
	SecretRefs map[string]ResourceRef `json:"secretsRef,omitempty"`

	// Environment lists Pulumi ESC environments to import.
	// +listType=atomic
	// +optional
	Environment []string `json:"environment,omitempty"`

	// EnvRefs sets environment variables of Pulumi and the program, from Secrets or literally.
	// +optional
	EnvRefs map[string]ResourceRef `json:"envRefs,omitempty"`

	// Envs is deprecated: use envRefs. It lists ConfigMaps whose keys become environment variables.
	// +optional
	Envs []string `json:"envs,omitempty"`

	// SecretEnvs is deprecated: use envRefs. It lists Secrets whose keys become environment variables.
	// +optional
	SecretEnvs []string `json:"envSecrets,omitempty"`

	// Suspend stops all work on the Stack until it is false again. An update that runs already goes on, unless the annotation
	// pulumi.com/cancel-update: "true" ends it.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// DependsOn lists Stacks that must be ready before this one is updated, optionally with a CEL expression that says when they
	// are.
	// +optional
	DependsOn []meta.DependencyReference `json:"dependsOn,omitempty"`

	// Prerequisites lists Stacks, in the same namespace, that must be up to date before this one is updated. A prerequisite that
	// is out of date is updated first.
	// +optional
	Prerequisites []PrerequisiteRef `json:"prerequisites,omitempty"`

	// Timeout of one update, for example "1h". After it the update is ended gracefully. Without it there is no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="timeout must be a duration such as 1h30m, and not negative"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// RetryInterval is the time between the attempts of a failed update, for example "5m". Without it, the first retry comes
	// after 10 seconds, and each further one after three times as long, up to retryMaxBackoffDurationSeconds.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="retryInterval must be a duration such as 1h30m, and not negative"
	// +optional
	RetryInterval *metav1.Duration `json:"retryInterval,omitempty"`

	// RetryMaxBackoffDurationSeconds is the longest time between the attempts of a failed update, in seconds. Nothing, and what is
	// not positive, means 86400, a day.
	// +optional
	RetryMaxBackoffDurationSeconds int64 `json:"retryMaxBackoffDurationSeconds,omitempty"`

	// RetryOnUpdateConflict tries again every 10 to 15 seconds, instead of with growing pauses, when another process holds the lock of
	// the stack.
	// +optional
	RetryOnUpdateConflict bool `json:"retryOnUpdateConflict,omitempty"`

	// ContinueResyncOnCommitMatch runs an update every resync interval, even when nothing changed.
	// +optional
	ContinueResyncOnCommitMatch bool `json:"continueResyncOnCommitMatch,omitempty"`

	// ResyncFrequencySeconds is the resync interval: how often a git branch is polled, and how often an update runs with
	// continueResyncOnCommitMatch, in seconds. Less than 60, or nothing, means 60.
	// +optional
	ResyncFrequencySeconds int64 `json:"resyncFrequencySeconds,omitempty"`

	// ResyncFrequency is resyncFrequencySeconds as a duration, for example "5m". Exclusive with resyncFrequencySeconds.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="resyncFrequency must be a duration such as 1h30m, and not negative"
	// +optional
	ResyncFrequency *metav1.Duration `json:"resyncFrequency,omitempty"`

	// Refresh the stack's state from its resources before each update or preview.
	// +optional
	Refresh bool `json:"refresh,omitempty"`

	// ExpectNoRefreshChanges, together with refresh, fails an update or preview when the refresh finds changes that were made outside of
	// Pulumi. Nothing is changed then, the state included, so the next attempt finds them again.
	// +optional
	ExpectNoRefreshChanges bool `json:"expectNoRefreshChanges,omitempty"`

	// Preview runs previews only; nothing is changed. Ready then means that the preview succeeded.
	// +optional
	Preview bool `json:"preview,omitempty"`

	// Targets lists the URNs of the resources to update or preview; all others are left alone.
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

	// DestroyOnFinalize destroys the stack's resources when the Stack is deleted.
	// +optional
	DestroyOnFinalize bool `json:"destroyOnFinalize,omitempty"`

	// DestroyAfterDependents keeps the stack's resources until no other Stack names this one in its dependsOn or prerequisites any
	// more, so that Stacks that are deleted together are destroyed in reverse order. Stacks that depend on each other do not wait. It
	// has no effect without destroyOnFinalize.
	// +optional
	DestroyAfterDependents bool `json:"destroyAfterDependents,omitempty"`

	// RunProgram runs the program when the stack is destroyed, to get fresh provider configuration.
	// +optional
	RunProgram bool `json:"runProgram,omitempty"`

	// WorkspaceReclaimPolicy says what happens to the Workspace after a successful update: Retain (the default) or Delete.
	// +optional
	WorkspaceReclaimPolicy WorkspaceReclaimPolicy `json:"workspaceReclaimPolicy,omitempty"`

	// WorkspaceIdleTimeout is how long the Stack may have nothing to run before the pod of its Workspace goes, for example "30m"; the next
	// update brings it back. 0s keeps the pod. Without it, --workspace-idle-timeout of the controller counts.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="workspaceIdleTimeout must be a duration such as 1h30m, and not negative"
	// +optional
	WorkspaceIdleTimeout *metav1.Duration `json:"workspaceIdleTimeout,omitempty"`

	// UpdateHistoryLimit is how many ended Updates are kept; 10 by default.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	UpdateHistoryLimit *int32 `json:"updateHistoryLimit,omitempty"`

	// Drift looks for changes that were made to resources outside of Pulumi, between the updates. Absent, nobody looks.
	// +optional
	Drift *DriftSpec `json:"drift,omitempty"`

	// Approval makes each change a plan, which somebody has to approve and which is then carried out exactly. Absent, changes are made at
	// once.
	// +optional
	Approval *ApprovalPolicy `json:"approval,omitempty"`

	// WorkspaceTemplate customizes the Workspace of the Stack.
	// +optional
	WorkspaceTemplate *WorkspaceTemplate `json:"workspaceTemplate,omitempty"`

	// UpdateTemplate customizes the Updates of the Stack.
	// +optional
	UpdateTemplate *UpdateTemplate `json:"updateTemplate,omitempty"`
}

// PrerequisiteRef names a Stack that must be up to date.
type PrerequisiteRef struct {
	// Name of the Stack.
	// +required
	Name string `json:"name"`

	// Requirement says more about what is required.
	// +optional
	Requirement *Requirement `json:"requirement,omitempty"`
}

// Requirement says what is required of a prerequisite.
type Requirement struct {
	// SucceededWithinDuration requires that the last update succeeded not longer ago than this, for example "1h". Less than ten
	// seconds count as ten seconds.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration(self)",message="succeededWithinDuration must be a duration such as 1h30m"
	// +optional
	SucceededWithinDuration *metav1.Duration `json:"succeededWithinDuration,omitempty"`
}

// Stack is a Pulumi stack that is kept as its program says.
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
