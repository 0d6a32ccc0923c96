package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
)

// UpdateKind is the kind of an Update.
const UpdateKind = "Update"

// UpdateType is an operation of Pulumi. The API server accepts any text, as with the Pulumi Kubernetes Operator; an Update whose type is
// not an operation fails.
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

// UpdateState is the state of an operation.
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

	// UpdateStateInterrupted means that pulumi or its agent was stopped from outside. The operation can be run again.
	UpdateStateInterrupted UpdateState = "Interrupted"

	// UpdateStateCancelled means that the operation was stopped on request.
	UpdateStateCancelled UpdateState = "Cancelled"
)

// Selection chooses the resources that an operation works on. Defaults to all of them.
type Selection struct {
	// Target lists the URNs of the resources to work on, also with the wildcards * and **. Defaults to all resources.
	// +optional
	Target []string `json:"target,omitempty"`

	// TargetDependents also works on the resources that depend on the targets.
	// +optional
	TargetDependents *bool `json:"targetDependents,omitempty"`

	// Exclude lists the URNs of resources to leave as they are, also with the wildcards * and **. A target is worked on in any case.
	// +optional
	Exclude []string `json:"exclude,omitempty"`

	// ExcludeDependents also leaves the resources that depend on the excluded ones as they are.
	// +optional
	ExcludeDependents *bool `json:"excludeDependents,omitempty"`
}

// UpdateSpec describes one operation. Changes after the start of the operation have no effect.
//
// +kubebuilder:validation:XValidation:rule="!has(self.savePlan) || !self.savePlan || has(self.type) && (self.type == 'preview' || self.type == 'destroy' && has(self.previewOnly) && self.previewOnly)",message="savePlan is for type preview, and for type destroy with previewOnly"
// +kubebuilder:validation:XValidation:rule="!has(self.planEnforcement) || has(self.savePlan) && self.savePlan",message="planEnforcement is for an Update with savePlan"
// +kubebuilder:validation:XValidation:rule="!has(self.plan) || has(self.type) && (self.type == 'up' || self.type == 'destroy' && !(has(self.previewOnly) && self.previewOnly))",message="plan is for type up or destroy, and not for one with previewOnly"
type UpdateSpec struct {
	// WorkspaceName is the name of the Workspace, in the same namespace, in which the operation runs. If it does not exist, the Update waits
	// for it.
	// +optional
	WorkspaceName string `json:"workspaceName,omitempty"`

	// StackName is the name of the stack: "dev", "org/dev" or "org/project/dev". An Update without a stack fails with the reason Aborted.
	// +optional
	StackName string `json:"stackName,omitempty"`

	// Type of the operation: preview, up, refresh or destroy. An Update with another type, or without a type, fails with the reason Aborted.
	// +optional
	Type UpdateType `json:"type,omitempty"`

	// Source is the artifact with the program that this operation runs. Defaults to the source of the Workspace.
	// +optional
	Source *UpdateSource `json:"source,omitempty"`

	// ProjectInfo makes a refresh or a destroy work from the state alone: the program is neither fetched nor run. An Update of another type
	// fails with the reason ConfigInvalid.
	// +optional
	ProjectInfo *ProjectInfo `json:"projectInfo,omitempty"`

	// Timeout after which the operation is stopped gracefully, for example "1h". If it is not set, there is no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="timeout must be a duration such as 1h30m, and not negative"
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// TTLAfterCompleted is how long the Update is kept after its end, for example "24h". If it is not set, the Update is kept until it is
	// deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration(self)",message="ttlAfterCompleted must be a duration such as 1h30m"
	// +optional
	TTLAfterCompleted *metav1.Duration `json:"ttlAfterCompleted,omitempty"`

	// Parallel is how many resource operations can run at once; 1 means one after the other. If it is not set, Pulumi decides.
	// +optional
	Parallel *int32 `json:"parallel,omitempty"`

	// Message describes the operation in the stack's history.
	// +optional
	Message *string `json:"message,omitempty"`

	// ExpectNoChanges fails the operation if it would change something, or has changed something.
	// +optional
	ExpectNoChanges *bool `json:"expectNoChanges,omitempty"`

	// Replace lists the URNs of resources to replace.
	// +optional
	Replace []string `json:"replace,omitempty"`

	Selection `json:",inline"`

	// Refresh the state from the resources first.
	// +optional
	Refresh *bool `json:"refresh,omitempty"`

	// ExpectNoRefreshChanges, together with refresh, fails an up or a preview before it changes anything, including the state, if the refresh
	// would find resources that differ from the state.
	// +optional
	ExpectNoRefreshChanges *bool `json:"expectNoRefreshChanges,omitempty"`

	// ContinueOnError continues with other resources after one has failed.
	// +optional
	ContinueOnError *bool `json:"continueOnError,omitempty"`

	// Remove the stack and its configuration from the backend after a destroy.
	// +optional
	Remove *bool `json:"remove,omitempty"`

	// RequireStack fails the operation with the reason StackLost, before anything runs, if the backend does not have the stack. The stack is
	// not created, even if the Workspace allows it.
	// +optional
	RequireStack *bool `json:"requireStack,omitempty"`

	// NewStack creates the stack before the operation, because it is probably not in the backend yet, instead of after pulumi has found that
	// it does not exist. A stack that exists is used as it is.
	// +optional
	NewStack *bool `json:"newStack,omitempty"`

	// AfterInterruption means that an earlier operation on the stack was cut off. The state is then checked for pending operations before
	// anything else is done: a resource that the operation was creating may exist, and would be created twice.
	// +optional
	AfterInterruption *bool `json:"afterInterruption,omitempty"`

	// PreviewOnly makes a refresh or a destroy show what it would change, without changing anything. It has no effect on other types.
	// +optional
	PreviewOnly *bool `json:"previewOnly,omitempty"`

	// RunProgram runs the program during refresh and destroy, to get fresh provider configuration.
	// +optional
	RunProgram *bool `json:"runProgram,omitempty"`

	// SavePlan saves what the operation would change as a plan, which another Update can carry out: see status.plan. A preview saves the plan
	// of an up, and a destroy with previewOnly the plan of a destroy. Other operations cannot save a plan.
	// +optional
	SavePlan *bool `json:"savePlan,omitempty"`

	// PlanEnforcement defines how the plan that savePlan saves can be carried out: Plan, the default, or Inputs. With Inputs, Pulumi's plan
	// file, which can be too large, is not saved, and the plan can only be carried out with enforce: Inputs.
	// +optional
	PlanEnforcement PlanEnforcement `json:"planEnforcement,omitempty"`

	// Plan makes an up or a destroy carry out exactly the plan that another Update has saved, or nothing.
	// +optional
	Plan *PlanReference `json:"plan,omitempty"`
}

// UpdateSource is the artifact that an operation runs, and where it comes from: a Flux source, a URL, a git repository or a
// Program.
//
// +kubebuilder:validation:XValidation:rule="[has(self.sourceRef), has(self.url) && size(self.url) > 0, has(self.git), has(self.program)].filter(s, s).size() == 1",message="set one of sourceRef, url, git and program"
type UpdateSource struct {
	// SourceRef names the object that publishes, or has published, the artifact with this digest. The controller fetches the artifact. The
	// namespace must be that of the Update unless the controller allows references to other namespaces.
	// +optional
	SourceRef *meta.NamespacedObjectKindReference `json:"sourceRef,omitempty"`
	// URL of the tarball, over http or https. The agent fetches the tarball, with the network and the identity of the workspace.
	// +optional
	URL string `json:"url,omitempty"`

	// Git is the commit from which the controller builds the tarball. Its ref must be a full hash.
	// +optional
	Git *GitSource `json:"git,omitempty"`

	// Program in the same namespace from which the controller builds the tarball.
	// +optional
	Program *ProgramSource `json:"program,omitempty"`

	// Digest of the tarball, for example "sha256:…". Content with another digest is never run.
	// +kubebuilder:validation:Pattern="^[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$"
	// +required
	Digest string `json:"digest"`

	// Revision is the human-readable revision of the source, for example "main@sha1:…".
	// +optional
	Revision string `json:"revision,omitempty"`

	// Dir is the directory of Pulumi.yaml in the artifact, relative to its root. Defaults to the root.
	// +optional
	Dir string `json:"dir,omitempty"`

	// Size of the tarball in bytes, if the source reports it.
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
	// ObservedGeneration is the generation of the Update that the conditions describe.
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

	// Permalink is the URL of the operation in the backend's console, if there is one.
	// +optional
	Permalink string `json:"permalink,omitempty"`

	// Message describes the progress or the result of the operation in one line.
	// +optional
	Message string `json:"message,omitempty"`

	// ResourceChanges counts the resource operations done so far by their kind: create, update, delete, replace, same.
	// +optional
	ResourceChanges map[string]int64 `json:"resourceChanges,omitempty"`

	// Changes lists what would change, for an operation that changes nothing: a preview, or a refresh or destroy with previewOnly. At most 200
	// changes are listed. They contain no values.
	// +listType=atomic
	// +optional
	Changes []ResourceChange `json:"changes,omitempty"`

	// OmittedChanges is how many changes are not listed.
	// +optional
	OmittedChanges int64 `json:"omittedChanges,omitempty"`

	// Plan is the plan that the operation saved. It contains no values.
	// +optional
	Plan *SavedPlan `json:"plan,omitempty"`

	// Outputs is the name of the Secret with the stack's outputs.
	// +optional
	Outputs string `json:"outputs,omitempty"`

	// OutputsNotStored is why the outputs that the stack has since this operation are not in a Secret. It is empty when they are, apart from
	// those that are too large, and when there are none.
	// +optional
	OutputsNotStored string `json:"outputsNotStored,omitempty"`

	// ProjectInfo identifies the project that the operation ran.
	// +optional
	ProjectInfo *ProjectInfo `json:"projectInfo,omitempty"`

	// NotRun is true if the Update failed before it ran Pulumi on the stack, so that it changed nothing.
	// +optional
	NotRun bool `json:"notRun,omitempty"`

	// ReferencesDigest identifies the versions of the watched Secrets and ConfigMaps whose values the operation was started with, with one
	// short hash for each. It reveals nothing about their content.
	// +optional
	ReferencesDigest string `json:"referencesDigest,omitempty"`

	// InputValuesDigest identifies the values of the inputs that the operation was started with, with one short hash for each. The key of the
	// hashes is in a Secret, so it reveals nothing about the values.
	// +optional
	InputValuesDigest string `json:"inputValuesDigest,omitempty"`

	// InputVersionsDigest identifies the versions of the objects that these values were read from, with one short hash for each.
	// +optional
	InputVersionsDigest string `json:"inputVersionsDigest,omitempty"`

	// Conditions of the Update: Progressing, Failed and Complete.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ResourceChange is what an operation would do with one resource.
type ResourceChange struct {
	// Operation is the kind of the change, such as create, update, replace or delete. For a refresh, delete means that the resource is gone.
	// +required
	Operation string `json:"operation"`

	// URN of the resource.
	// +required
	URN string `json:"urn"`

	// Paths are the properties that differ, for example "tags.owner". At most 20 are listed.
	// +listType=atomic
	// +optional
	Paths []string `json:"paths,omitempty"`

	// ReplacePaths are the properties that require a replacement.
	// +listType=atomic
	// +optional
	ReplacePaths []string `json:"replacePaths,omitempty"`

	// Digest of the change with its old and new values, for a plan. It reveals nothing about the values, see SavedPlan.
	// +optional
	Digest string `json:"digest,omitempty"`
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
