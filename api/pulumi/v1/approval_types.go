package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// DefaultApprovalExpiry is how long a plan can be approved and carried out if spec.approval.expiresAfter is not set.
const DefaultApprovalExpiry = 24 * time.Hour

// ApprovalRequirement defines which plans need an approval.
// +kubebuilder:validation:Enum=Always;Destructive
type ApprovalRequirement string

const (
	// ApprovalAlways requires an approval for each plan that changes something. It is the default.
	ApprovalAlways ApprovalRequirement = "Always"

	// ApprovalDestructive requires an approval for plans that delete or replace a resource. Other plans are carried out without an approval.
	ApprovalDestructive ApprovalRequirement = "Destructive"
)

// ApprovedOperation is a kind of change that an approval can be required for.
// +kubebuilder:validation:Enum=Up;Destroy;DriftCorrection
type ApprovedOperation string

const (
	// ApprovedUp is an update because of a change of the spec, the source or a Secret, a request, or a resync.
	ApprovedUp ApprovedOperation = "Up"

	// ApprovedDestroy is the destroy of a Stack that is being deleted.
	ApprovedDestroy ApprovedOperation = "Destroy"

	// ApprovedDriftCorrection is an update that corrects drift.
	ApprovedDriftCorrection ApprovedOperation = "DriftCorrection"
)

// ApprovalPolicy defines which changes of a Stack need an approval. The controller makes a plan of each change, and then carries out
// exactly that plan.
type ApprovalPolicy struct {
	// Require defines which plans need an approval. Always, the default: all that change a resource. Destructive: those that delete or
	// replace one.
	// +kubebuilder:default=Always
	// +optional
	Require ApprovalRequirement `json:"require,omitempty"`

	// Operations that need an approval: Up, Destroy and DriftCorrection. Defaults to all of them. Others are planned and carried out without
	// an approval.
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Operations []ApprovedOperation `json:"operations,omitempty"`

	// ExpiresAfter is how long a plan can be approved and carried out, at least 1m. Defaults to 24h. After that, a new plan is made, which
	// needs approvals of its own.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="expiresAfter must be a duration of at least 1m"
	// +kubebuilder:default="24h"
	// +optional
	ExpiresAfter metav1.Duration `json:"expiresAfter,omitempty,omitzero"`

	// Enforce defines how the update is held to its plan. With Plan, the default, Pulumi refuses each step that is not in the plan. With
	// Inputs, only the inputs and the state must be those of the plan, for programs that Pulumi refuses by mistake.
	// +kubebuilder:default=Plan
	// +optional
	Enforce autov1alpha1.PlanEnforcement `json:"enforce,omitempty"`
}

// PlanState is the state of a plan.
type PlanState string

const (
	// PlanPending means that the plan waits for an approval.
	PlanPending PlanState = "Pending"

	// PlanApproved means that the plan is approved or needs no approval, and that its update runs or is about to run.
	PlanApproved PlanState = "Approved"

	// PlanRejected means that a user rejected the plan.
	PlanRejected PlanState = "Rejected"

	// PlanExpired means that the plan was not carried out in time.
	PlanExpired PlanState = "Expired"

	// PlanStale means that the inputs or the state changed before the plan could be carried out. Nothing was changed by the plan.
	PlanStale PlanState = "Stale"

	// PlanSuperseded means that the plan is no longer needed or another plan replaces it, for example after a change of the spec or the
	// source, or after a request.
	PlanSuperseded PlanState = "Superseded"

	// PlanApplied means that the plan was carried out.
	PlanApplied PlanState = "Applied"

	// PlanFailed means that the plan could not be made, or that carrying it out failed.
	PlanFailed PlanState = "Failed"
)

// PlanCause is the reason why a plan is made.
type PlanCause string

const (
	// PlanForChange is a plan for a change of the spec, the source or a Secret, for a request, or for a deletion.
	PlanForChange PlanCause = "Change"

	// PlanForResync is a plan for a resync. The Stack stays ready while the plan waits for its approval.
	PlanForResync PlanCause = "Resync"

	// PlanForDrift is a plan that corrects drift. The Stack stays ready while the plan waits for its approval.
	PlanForDrift PlanCause = "Drift"
)

// PlanStatus is the plan of a Stack with spec.approval.
type PlanStatus struct {
	UpdateInputs `json:",inline"`

	// Name of the Update that made the plan. The status of that Update lists the changes.
	// +required
	Name string `json:"name"`

	// UID of that Update.
	// +optional
	UID types.UID `json:"uid,omitempty"`

	// Digest of the plan: of its inputs, its changes, the state for which it was made, its plan file, and the text that describes it.
	// +optional
	Digest string `json:"digest,omitempty"`

	// ChangesDigest is the digest of the values and the changes, without the state. A new plan with the same changesDigest and the same
	// content keeps the approvals.
	// +optional
	ChangesDigest string `json:"changesDigest,omitempty"`

	// InputsDigest is the digest of the inputs alone.
	// +optional
	InputsDigest string `json:"inputsDigest,omitempty"`

	// ValuesDigest is the digest of the inputs without the program, its source and its targets.
	// +optional
	ValuesDigest string `json:"valuesDigest,omitempty"`

	// ApprovedValuesDigest is the valuesDigest of the last plan that was carried out.
	// +optional
	ApprovedValuesDigest string `json:"approvedValuesDigest,omitempty"`

	// Enforce is how the update is held to the plan.
	// +optional
	Enforce autov1alpha1.PlanEnforcement `json:"enforce,omitempty"`

	// State of the plan: Pending, Approved, Rejected, Expired, Stale, Superseded, Applied or Failed.
	// +required
	State PlanState `json:"state"`

	// Operation that is planned: Up, Destroy or DriftCorrection.
	// +required
	Operation ApprovedOperation `json:"operation"`

	// Cause of the plan: Change, Resync or Drift.
	// +optional
	Cause PlanCause `json:"cause,omitempty"`

	// Summary counts the resources that the plan creates (+), updates (~), replaces (+-), deletes (-), and changes otherwise (=, if any), for
	// example "+2 ~1 +-1 -0".
	// +optional
	Summary string `json:"summary,omitempty"`

	// Changes is how many resources the plan changes. A plan that changes none needs no approval.
	// +optional
	Changes int64 `json:"changes,omitempty"`

	// Destructive is how many resources the plan deletes or replaces.
	// +optional
	Destructive int64 `json:"destructive,omitempty"`

	// ExpiresAt is the time until which the plan can be approved and carried out.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`

	// Approvals of the plan, at most 10.
	// +listType=atomic
	// +optional
	Approvals []PlanApproval `json:"approvals,omitempty"`

	// RejectedBy is the user who rejected the plan.
	// +optional
	RejectedBy string `json:"rejectedBy,omitempty"`

	// CarriedFrom is the name of the earlier plan from which the approvals were taken over.
	// +optional
	CarriedFrom string `json:"carriedFrom,omitempty"`

	// Update is the name of the Update that carried out the plan, or tried to.
	// +optional
	Update string `json:"update,omitempty"`

	// Stale is how many plans in a row, with the same changes, were out of date.
	// +optional
	Stale int64 `json:"stale,omitempty"`

	// StaleSince is when the last of these plans was found to be out of date.
	// +optional
	StaleSince *metav1.Time `json:"staleSince,omitempty"`

	// Trigger describes what caused the change.
	// +optional
	Trigger string `json:"trigger,omitempty"`

	// Drift is the digest of the drift that the plan corrects.
	// +optional
	Drift string `json:"drift,omitempty"`
}

// PlanApproval records who approved a plan, and when.
type PlanApproval struct {
	// By is the user who approved the plan.
	// +required
	By string `json:"by"`

	// At is the time of the approval.
	// +required
	At metav1.Time `json:"at"`

	// Reason that the user gave.
	// +optional
	Reason string `json:"reason,omitempty"`
}
