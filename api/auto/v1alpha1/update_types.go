package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
)

// UpdateKind is the kind of an Update.
const UpdateKind = "Update"

// UpdateType is an operation of Pulumi. Any text is accepted, as by the Pulumi Kubernetes Operator; an Update with one that is no
// operation fails.
type UpdateType string

const (
	// UpdateTypePreview shows what an up would change.
	UpdateTypePreview UpdateType = "preview"

	// UpdateTypeUp makes the resources match the program.
	UpdateTypeUp UpdateType = "up"

	// UpdateTypeRefresh makes the state match the resources.
	UpdateTypeRefresh UpdateType = "refresh"

	// UpdateTypeDestroy deletes the resources.
	UpdateTypeDestroy UpdateType = "destroy"
)

// UpdateState says how far an operation is.
type UpdateState string

const (
	// UpdateStateQueued means that the operation was accepted and has not started.
	UpdateStateQueued UpdateState = "Queued"

	// UpdateStatePreparing means that the program is being installed and the stack selected and configured.
	UpdateStatePreparing UpdateState = "Preparing"

	// UpdateStateRunning means that pulumi runs.
	UpdateStateRunning UpdateState = "Running"

	// UpdateStateSucceeded means that the operation ended with success.
	UpdateStateSucceeded UpdateState = "Succeeded"

	// UpdateStateFailed means that the operation ended with a failure.
	UpdateStateFailed UpdateState = "Failed"

	// UpdateStateInterrupted means that pulumi or its agent was ended from outside; the operation may be run again.
	UpdateStateInterrupted UpdateState = "Interrupted"

	// UpdateStateCancelled means that the operation was ended on request.
	UpdateStateCancelled UpdateState = "Cancelled"
)

// UpdateSpec describes one operation. It is not meant to be changed once the operation started.
//
// +kubebuilder:validation:XValidation:rule="!has(self.savePlan) || !self.savePlan || has(self.type) && (self.type == 'preview' || self.type == 'destroy' && has(self.previewOnly) && self.previewOnly)",message="savePlan is for type preview, and for type destroy with previewOnly"
// +kubebuilder:validation:XValidation:rule="!has(self.planEnforcement) || has(self.savePlan) && self.savePlan",message="planEnforcement is for an Update with savePlan"
// +kubebuilder:validation:XValidation:rule="!has(self.plan) || has(self.type) && (self.type == 'up' || self.type == 'destroy' && !(has(self.previewOnly) && self.previewOnly))",message="plan is for type up or destroy, and not for one with previewOnly"
type UpdateSpec struct {
	// WorkspaceName is the name of the Workspace in which the operation runs. An Update without one waits for it.
	// +optional
	WorkspaceName string `json:"workspaceName,omitempty"`

	// StackName is the stack to work on: "dev", "org/dev" or "org/project/dev". An Update without one fails with the reason Aborted.
	// +optional
	StackName string `json:"stackName,omitempty"`

	// Type of the operation: preview, up, refresh or destroy. An Update with any other type, or without one, fails with the reason
	// Aborted.
	// +optional
	Type UpdateType `json:"type,omitempty"`

	// Source is the artifact with the program that this operation runs. Without it the source of the Workspace counts.
	// +optional
	Source *UpdateSource `json:"source,omitempty"`

	// ProjectInfo lets a refresh or a destroy work from the state alone: the program is neither fetched nor run. Other types fail with the
	// reason ConfigInvalid.
	// +optional
	ProjectInfo *ProjectInfo `json:"projectInfo,omitempty"`

	// Timeout after which the operation is ended gracefully, for example "1h". Without it there is no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="timeout must be a duration such as 1h30m, and not negative"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// TTLAfterCompleted is how long the Update is kept after it completed, for example "24h". Without it, it is kept until it is
	// deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration(self)",message="ttlAfterCompleted must be a duration such as 1h30m"
	// +optional
	TTLAfterCompleted *metav1.Duration `json:"ttlAfterCompleted,omitempty"`

	// Parallel is how many resource operations may run at once; 1 means one after the other. Without it pulumi decides.
	// +optional
	Parallel *int32 `json:"parallel,omitempty"`

	// Message describes the operation in the stack's history.
	// +optional
	Message *string `json:"message,omitempty"`

	// ExpectNoChanges fails the operation when it would change, or changed, something.
	// +optional
	ExpectNoChanges *bool `json:"expectNoChanges,omitempty"`

	// Replace lists the URNs of resources to replace.
	// +optional
	Replace []string `json:"replace,omitempty"`

	// Target lists the URNs of the resources to work on; all others are left alone.
	// +optional
	Target []string `json:"target,omitempty"`

	// TargetDependents also works on the resources that depend on the targets.
	// +optional
	TargetDependents *bool `json:"targetDependents,omitempty"`

	// Refresh the state from the resources first.
	// +optional
	Refresh *bool `json:"refresh,omitempty"`

	// ExpectNoRefreshChanges, together with refresh, fails an up or a preview before it changes anything, the state included, when the
	// refresh would find resources that are not as the state has them.
	// +optional
	ExpectNoRefreshChanges *bool `json:"expectNoRefreshChanges,omitempty"`

	// ContinueOnError keeps working on other resources after one failed.
	// +optional
	ContinueOnError *bool `json:"continueOnError,omitempty"`

	// Remove the stack and its configuration from the backend after a destroy.
	// +optional
	Remove *bool `json:"remove,omitempty"`

	// RequireStack fails the operation, before anything is run, when the backend does not have the stack. The stack is not created
	// then, whatever the Workspace says.
	// +optional
	RequireStack *bool `json:"requireStack,omitempty"`

	// NewStack says that the stack is probably not in the backend yet: it is created before the operation, instead of when pulumi has found
	// that it does not exist. A stack that exists is used as it is.
	// +optional
	NewStack *bool `json:"newStack,omitempty"`

	// AfterInterruption says that an earlier operation on the stack was cut off. What it was working on is looked for in the state
	// before anything else is done: a resource that it was creating may exist, and would be created twice.
	// +optional
	AfterInterruption *bool `json:"afterInterruption,omitempty"`

	// PreviewOnly makes a refresh or a destroy show what it would change, and change nothing. Other types ignore it.
	// +optional
	PreviewOnly *bool `json:"previewOnly,omitempty"`

	// RunProgram runs the program during refresh and destroy, to get fresh provider configuration.
	// +optional
	RunProgram *bool `json:"runProgram,omitempty"`

	// SavePlan keeps what the operation would change as a plan, which another Update can carry out: see status.plan. It is for a preview, of
	// which it makes the plan of an up, and for a destroy with previewOnly.
	// +optional
	SavePlan *bool `json:"savePlan,omitempty"`

	// PlanEnforcement says how the plan that savePlan keeps is going to be carried out. With Inputs the file of Pulumi is not kept, which may
	// be too large. Without it, it is Plan.
	// +optional
	PlanEnforcement PlanEnforcement `json:"planEnforcement,omitempty"`

	// Plan makes an up or a destroy carry out a plan that another Update has saved, exactly as it is, or nothing.
	// +optional
	Plan *PlanReference `json:"plan,omitempty"`
}

// UpdateSource is the artifact that an operation runs, and where it comes from: a Flux source, a URL, a git repository or a
// Program.
//
// +kubebuilder:validation:XValidation:rule="[has(self.sourceRef), has(self.url) && size(self.url) > 0, has(self.git), has(self.program)].filter(s, s).size() == 1",message="set one of sourceRef, url, git and program"
type UpdateSource struct {
	// SourceRef names the object that publishes, or published, the artifact with this digest. The controller fetches it. The
	// namespace is that of the Update unless references to other namespaces are allowed.
	// +optional
	SourceRef *meta.NamespacedObjectKindReference `json:"sourceRef,omitempty"`
	// URL of the tarball, over http or https. The agent fetches it, with the network and the identity of the workspace.
	// +optional
	URL string `json:"url,omitempty"`

	// Git is the commit that the tarball is made of.
	// +optional
	Git *GitSource `json:"git,omitempty"`

	// Program in the same namespace that the tarball is made of.
	// +optional
	Program *ProgramSource `json:"program,omitempty"`

	// Digest of the tarball, for example "sha256:…". Content with another digest is never run.
	// +kubebuilder:validation:Pattern="^[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$"
	// +required
	Digest string `json:"digest"`

	// Revision is what people call this version of the source, for example "main@sha1:…".
	// +optional
	Revision string `json:"revision,omitempty"`

	// Dir is the directory of Pulumi.yaml in the artifact, relative to its root. Empty means the root.
	// +optional
	Dir string `json:"dir,omitempty"`

	// Size of the tarball in bytes, when the source tells it.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Size *int64 `json:"size,omitempty"`

	// Commit describes the git commit that the content comes from, for the history of the stack.
	// +optional
	Commit *CommitInfo `json:"commit,omitempty"`
}

// ProgramSource names a Program in the namespace of the Update.
type ProgramSource struct {
	// Name of the Program.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`
}

// CommitInfo describes a git commit, as far as it is known.
type CommitInfo struct {
	// SHA is the full hash of the commit.
	// +optional
	SHA string `json:"sha,omitempty"`

	// Ref is the full name of the branch or tag that led to the commit, for example "refs/heads/main".
	// +optional
	Ref string `json:"ref,omitempty"`

	// Author is the name of the author.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Author string `json:"author,omitempty"`

	// AuthorEmail is the mail address of the author.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	AuthorEmail string `json:"authorEmail,omitempty"`

	// Message is the first line of the commit message.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`

	// Repository is the URL of the repository, without credentials.
	// +optional
	Repository string `json:"repository,omitempty"`
}

// UpdateStatus is the observed state of an Update.
type UpdateStatus struct {
	// ObservedGeneration is the generation of the Update that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// State of the operation: Queued, Preparing, Running, Succeeded, Failed, Interrupted or Cancelled.
	// +optional
	State UpdateState `json:"state,omitempty"`

	// Revision of the source that the operation runs.
	// +optional
	Revision string `json:"revision,omitempty"`

	// StartTime is when the operation started.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// EndTime is when the operation ended.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`

	// Permalink leads to the operation in the backend's console, when there is one.
	// +optional
	Permalink string `json:"permalink,omitempty"`

	// Message says in one line what runs, or why the operation ended as it did.
	// +optional
	Message string `json:"message,omitempty"`

	// ResourceChanges counts the resource operations done so far by their kind: create, update, delete, replace, same.
	// +optional
	ResourceChanges map[string]int64 `json:"resourceChanges,omitempty"`

	// Changes are what an operation that changes nothing found: a preview, or a refresh or destroy with previewOnly. At most 200 are listed.
	// There are no values in them.
	// +listType=atomic
	// +optional
	Changes []ResourceChange `json:"changes,omitempty"`

	// OmittedChanges is how many changes are not listed.
	// +optional
	OmittedChanges int64 `json:"omittedChanges,omitempty"`

	// Plan is the plan that the operation saved. There are no values in it.
	// +optional
	Plan *SavedPlan `json:"plan,omitempty"`

	// Outputs is the name of the Secret with the stack's outputs.
	// +optional
	Outputs string `json:"outputs,omitempty"`

	// ProjectInfo identifies the project that the operation ran.
	// +optional
	ProjectInfo *ProjectInfo `json:"projectInfo,omitempty"`

	// ReferencesDigest identifies the versions of the watched Secrets and ConfigMaps whose values the operation was started with:
	// one short hash for each. It tells nothing about their content.
	// +optional
	ReferencesDigest string `json:"referencesDigest,omitempty"`

	// Conditions of the Update: Progressing, Failed and Complete.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ResourceChange is what would be done with one resource.
type ResourceChange struct {
	// Operation is create, update, replace, delete and the like. Of a refresh, delete means that the resource is gone.
	// +required
	Operation string `json:"operation"`

	// URN of the resource.
	// +required
	URN string `json:"urn"`

	// Paths are the properties that differ, for example "tags.owner". At most 20 are listed.
	// +listType=atomic
	// +optional
	Paths []string `json:"paths,omitempty"`

	// ReplacePaths are the properties that make a replacement necessary.
	// +listType=atomic
	// +optional
	ReplacePaths []string `json:"replacePaths,omitempty"`
}

// GetConditions returns the conditions of the Update.
func (in *Update) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the Update.
func (in *Update) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// OutputsSecretName returns the name of the Secret that receives the stack's outputs.
func (in *Update) OutputsSecretName() string {
	return in.Name + OutputsSecretSuffix
}

// Update is one operation of Pulumi in a Workspace: a preview, up, refresh or destroy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Workspace",type=string,JSONPath=`.spec.workspaceName`
// +kubebuilder:printcolumn:name="Type",type=string,priority=10,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Start Time",type=date,priority=10,JSONPath=`.status.startTime`
// +kubebuilder:printcolumn:name="End Time",type=date,priority=10,JSONPath=`.status.endTime`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="Failed",type=string,JSONPath=`.status.conditions[?(@.type=="Failed")].status`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.permalink`
type Update struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec describes the operation.
	// +optional
	Spec UpdateSpec `json:"spec,omitempty"`

	// Status is what the controller observed.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status UpdateStatus `json:"status,omitempty"`
}

// UpdateList is a list of Updates.
//
// +kubebuilder:object:root=true
type UpdateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Update `json:"items"`
}
