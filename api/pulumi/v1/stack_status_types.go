package v1

import (
	"github.com/fluxcd/pkg/apis/meta"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// StackUpdateState is the outcome of an update.
type StackUpdateState string

const (
	// StackUpdateSucceeded means that the update succeeded.
	StackUpdateSucceeded StackUpdateState = "succeeded"

	// StackUpdateFailed means that the update failed.
	StackUpdateFailed StackUpdateState = "failed"
)

// HeldCondition is the condition of a Stack that reports that its StackRollout does not let it have the newest revision of its source yet, or that its
// windows hold an update back.
const HeldCondition = "Held"

// StackStatus is the observed state of a Stack.
type StackStatus struct {
	meta.ReconcileRequestStatus `json:",inline"`
	meta.ForceRequestStatus     `json:",inline"`

	// ObservedGeneration is the generation of the Stack that the conditions describe.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// ObservedReconcileRequest is the value of the annotation pulumi.com/reconciliation-request that was handled last.
	// +optional
	ObservedReconcileRequest string `json:"observedReconcileRequest,omitempty"`

	// ObservedLastUpdateRequest is the value of the annotation pulumi.com/last-update that was handled last.
	// +optional
	ObservedLastUpdateRequest string `json:"observedLastUpdateRequest,omitempty"`

	// Conditions of the Stack: Ready, Reconciling and Stalled, Drifted if spec.drift is set, and Held while spec.rolloutRef or spec.windows hold something back.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Outputs of the stack after the last successful update. The value of a secret output is "[secret]".
	// +optional
	Outputs map[string]apiextensionsv1.JSON `json:"outputs,omitempty"`

	// StoredOutputs says where all outputs of the last successful update are, also the secret ones.
	// +optional
	StoredOutputs *StoredOutputs `json:"storedOutputs,omitempty"`

	// OutputsNotStored is why the outputs of the last update that succeeded are not stored. Until an update stores its outputs, outputs,
	// storedOutputs and outputObjects are those of an earlier one.
	// +optional
	OutputsNotStored string `json:"outputsNotStored,omitempty"`

	// OutputObjects are the Secrets and ConfigMaps of spec.outputs that the controller has written.
	// +optional
	OutputObjects *OutputObjectsStatus `json:"outputObjects,omitempty"`

	// CurrentUpdate is the update that runs, or waits to run.
	// +optional
	CurrentUpdate *CurrentStackUpdate `json:"currentUpdate,omitempty"`

	// Deployed is true from the start of an operation that may create resources until a destroy succeeds, or until the first operation
	// turns out to have failed before it ran Pulumi. While it is true, the finalizer of a Stack with destroyOnFinalize is removed only after a
	// destroy.
	// +optional
	Deployed bool `json:"deployed,omitempty"`

	// DeployedStack is the name of the Pulumi stack that was deployed, until a destroy succeeds. While spec.stack is this name, the stack is
	// not created again if the backend no longer has it.
	// +optional
	DeployedStack string `json:"deployedStack,omitempty"`

	// DeployedBackend is spec.backend of that deployment, without credentials and parameters.
	// +optional
	DeployedBackend string `json:"deployedBackend,omitempty"`

	// LeftStacks are the Pulumi stacks that were deployed before spec.stack, spec.backend or the project was changed, and were not destroyed
	// since, at most 50. With destroyOnFinalize, a deleted Stack stays until they are destroyed or given up.
	// +listType=atomic
	// +optional
	LeftStacks []LeftStack `json:"leftStacks,omitempty"`

	// Problem is what keeps the Stack from being ready, until it is ready again.
	// +optional
	Problem *ProblemStatus `json:"problem,omitempty"`

	// LastUpdate is the update that ended last.
	// +optional
	LastUpdate *StackUpdateStatus `json:"lastUpdate,omitempty"`

	// LastAttemptedRevision is the revision of the source that was tried last, for example "main@sha1:…".
	// +optional
	LastAttemptedRevision string `json:"lastAttemptedRevision,omitempty"`

	// LastAppliedRevision is the revision of the source that was last deployed successfully.
	// +optional
	LastAppliedRevision string `json:"lastAppliedRevision,omitempty"`

	// LastAppliedOriginRevision is the git commit, for example "sha1:…", from which the applied artifact was made, if the artifact records it
	// and the revision does not. "flux push artifact" records it in an OCI artifact.
	// +optional
	LastAppliedOriginRevision string `json:"lastAppliedOriginRevision,omitempty"`

	// VerifiedDigest is the digest of the last artifact that Flux has verified, if verification is required.
	// +optional
	VerifiedDigest string `json:"verifiedDigest,omitempty"`

	// EarlierVerifiedDigests are the digests of those artifacts that the Stack ran last and runs now which Flux has verified before that one.
	// +listType=atomic
	// +optional
	EarlierVerifiedDigests []string `json:"earlierVerifiedDigests,omitempty"`

	// History of the last updates, the newest first: at most five.
	// +optional
	History meta.History `json:"history,omitempty"`

	// Plan is the plan of a Stack with spec.approval.
	// +optional
	Plan *PlanStatus `json:"plan,omitempty"`

	// Drift is the result of the checks for drift, if spec.drift is set.
	// +optional
	Drift *DriftStatus `json:"drift,omitempty"`

	// ProjectInfo identifies the project of the last successful update. With it the stack can be destroyed without its source.
	// +optional
	ProjectInfo *autov1alpha1.ProjectInfo `json:"projectInfo,omitempty"`
}

// CurrentStackUpdate is an update that has not ended.
type CurrentStackUpdate struct {
	UpdateInputs `json:",inline"`

	// ReconcileRequest is the value of the annotation pulumi.com/reconciliation-request that the update is for.
	// +optional
	ReconcileRequest string `json:"reconcileRequest,omitempty"`

	// Name of the Update.
	// +optional
	Name string `json:"name,omitempty"`

	// UID of the Update, if the controller of the Stack created it.
	// +optional
	UID types.UID `json:"uid,omitempty"`

	// Cause of the plan that the Update makes, if it makes one.
	// +optional
	Cause PlanCause `json:"cause,omitempty"`

	// Drift is the digest of the drift that the update corrects, if any.
	// +optional
	Drift string `json:"drift,omitempty"`

	// First is true if nothing was deployed when the Update was created. If it fails before it runs Pulumi, there is nothing to destroy.
	// +optional
	First bool `json:"first,omitempty"`

	// Withdrawn is true once it is certain that the Update, which was deleted, has changed nothing.
	// +optional
	Withdrawn bool `json:"withdrawn,omitempty"`

	// RequestedAt is the value of the annotation reconcile.fluxcd.io/requestedAt that requested the Update, if any.
	// +optional
	RequestedAt string `json:"requestedAt,omitempty"`

	// LastUpdateRequest is the value of the annotation pulumi.com/last-update that requested the Update, if any.
	// +optional
	LastUpdateRequest string `json:"lastUpdateRequest,omitempty"`
}

// StackUpdateStatus is the outcome of an update.
type StackUpdateStatus struct {
	InputsWithoutCommit `json:",inline"`

	// ReconcileRequest is the value of the annotation pulumi.com/reconciliation-request that the update was for.
	// +optional
	ReconcileRequest string `json:"reconcileRequest,omitempty"`

	// Name of the Update.
	// +optional
	Name string `json:"name,omitempty"`

	// Type of the operation: preview, up, refresh or destroy.
	// +optional
	Type autov1alpha1.UpdateType `json:"type,omitempty"`

	// State is succeeded or failed.
	// +optional
	State StackUpdateState `json:"state,omitempty"`

	// Message describes why the update failed.
	// +optional
	Message string `json:"message,omitempty"`

	// Reason is the kind of the failure: the reason of the condition Failed of the Update.
	// +optional
	Reason string `json:"reason,omitempty"`

	// LastAttemptedCommit is what the update ran: the digest of the artifact, or the hash of the git commit.
	// +optional
	LastAttemptedCommit string `json:"lastAttemptedCommit,omitempty"`

	// LastSuccessfulCommit is what the last successful update ran: the digest of the artifact, or the hash of the git commit.
	// +optional
	LastSuccessfulCommit string `json:"lastSuccessfulCommit,omitempty"`

	// Permalink is the URL of the update in the backend's console, if there is one.
	// +optional
	Permalink string `json:"permalink,omitempty"`

	// LastResyncTime is when the update ended.
	// +optional
	LastResyncTime metav1.Time `json:"lastResyncTime,omitempty,omitzero"`

	// ResourceChanges counts the resource operations of the update by their kind: create, update, delete, replace, same.
	// +optional
	ResourceChanges map[string]int64 `json:"resourceChanges,omitempty"`

	// Failures counts the failed updates with the same inputs since the last success.
	// +optional
	Failures int64 `json:"failures"`

	// Interruptions counts the updates in a row, with the same inputs, that were stopped from outside. They are not failures.
	// +optional
	Interruptions int64 `json:"interruptions,omitempty"`

	// PendingOperations is true if an operation failed or was cut off, and none has succeeded since. Resources that it was creating may exist without
	// being in the state, so the next operation checks for them first.
	// +optional
	PendingOperations bool `json:"pendingOperations,omitempty"`

	// Drift is the digest of the drift that the update was made to correct, if any.
	// +optional
	Drift string `json:"drift,omitempty"`

	// Conflicts counts the attempts in a row, with the same inputs, that could not start because another process held the lock of the stack.
	// They are not failures.
	// +optional
	Conflicts int64 `json:"conflicts,omitempty"`

	// ConflictsSince is when the first of these attempts ended.
	// +optional
	ConflictsSince *metav1.Time `json:"conflictsSince,omitempty"`
}

// LeftStack is a Pulumi stack that a Stack deployed earlier.
type LeftStack struct {
	// Name as in spec.stack.
	// +required
	Name string `json:"name"`

	// Project of the Pulumi stack, if it is known.
	// +optional
	Project string `json:"project,omitempty"`

	// Backend is spec.backend of that time, without credentials and parameters.
	// +optional
	Backend string `json:"backend,omitempty"`
}

// ProblemStatus is what the controller remembers about a problem, so that it is announced once, and so is its end.
type ProblemStatus struct {
	// Reason of the condition Ready.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Since is when the Stack began to show this reason.
	// +optional
	Since metav1.Time `json:"since,omitempty,omitzero"`

	// Announced is the reason that the last event was about.
	// +optional
	Announced string `json:"announced,omitempty"`
}
