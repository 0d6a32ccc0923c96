package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// DefaultApprovalExpiry is how long a plan waits for its approval, and an approval for its update, where the spec does not say.
const DefaultApprovalExpiry = 24 * time.Hour

// ApprovalRequirement says which plans need an approval.
// +kubebuilder:validation:Enum=Always;Destructive
type ApprovalRequirement string

const (
	// ApprovalAlways requires an approval for each plan that changes something. It is the default.
	ApprovalAlways ApprovalRequirement = "Always"

	// ApprovalDestructive requires an approval for plans that delete or replace a resource. Others are carried out as they were planned.
	ApprovalDestructive ApprovalRequirement = "Destructive"
)

// ApprovedOperation is a kind of change that an approval can be required for.
// +kubebuilder:validation:Enum=Up;Destroy;DriftCorrection
type ApprovedOperation string

const (
	// ApprovedUp is an update that the spec, the source, a request or the schedule asks for.
	ApprovedUp ApprovedOperation = "Up"

	// ApprovedDestroy is the destroy of a Stack that is being deleted.
	ApprovedDestroy ApprovedOperation = "Destroy"

	// ApprovedDriftCorrection is an update that corrects drift.
	ApprovedDriftCorrection ApprovedOperation = "DriftCorrection"
)

// ApprovalPolicy makes each change a plan that is shown first. What is carried out afterwards is that plan and nothing else.
type ApprovalPolicy struct {
	// Require is Always or Destructive.
	// +kubebuilder:default=Always
	// +optional
	Require ApprovalRequirement `json:"require,omitempty"`

	// Operations that need an approval: Up, Destroy and DriftCorrection, which is also what is meant when there is none. Others are planned
	// and carried out without one.
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Operations []ApprovedOperation `json:"operations,omitempty"`

	// ExpiresAfter is how long a plan can be approved and carried out, at least 1m, for example "24h". After
	// that, a new plan is made, which needs approvals of its own.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="expiresAfter must be a duration of at least 1m"
	// +kubebuilder:default="24h"
	// +optional
	ExpiresAfter metav1.Duration `json:"expiresAfter,omitempty,omitzero"`

	// Enforce says how the update is held to its plan: Plan lets Pulumi refuse whatever the plan does not have; Inputs only requires that the
	// inputs and the state are those of the plan, for programs that Pulumi refuses by mistake.
	// +kubebuilder:default=Plan
	// +optional
	Enforce autov1alpha1.PlanEnforcement `json:"enforce,omitempty"`
}

// PlanState says how far a plan is.
type PlanState string

const (
	// PlanPending means that somebody has to approve the plan.
	PlanPending PlanState = "Pending"

	// PlanApproved means that the plan was approved, or needs no approval, and is being carried out or about to be.
	PlanApproved PlanState = "Approved"

	// PlanRejected means that somebody rejected the plan.
	PlanRejected PlanState = "Rejected"

	// PlanExpired means that the plan was not carried out in time.
	PlanExpired PlanState = "Expired"

	// PlanStale means that the plan was approved, and that the stack was not any more what was planned for: nothing was changed.
	PlanStale PlanState = "Stale"

	// PlanSuperseded means that the plan is not about what the Stack asks for now.
	PlanSuperseded PlanState = "Superseded"

	// PlanApplied means that the plan was carried out.
	PlanApplied PlanState = "Applied"

	// PlanFailed means that carrying out the plan failed.
	PlanFailed PlanState = "Failed"
)

// PlanCause says why there is a plan.
type PlanCause string

const (
	// PlanForChange is a plan for what the spec, the source, a Secret or a request asks for, or for a deletion.
	PlanForChange PlanCause = "Change"

	// PlanForResync is a plan that the schedule asks for. The Stack is ready while it waits.
	PlanForResync PlanCause = "Resync"

	// PlanForDrift is a plan that corrects drift. The Stack is ready while it waits.
	PlanForDrift PlanCause = "Drift"
)

// PlanStatus is the plan of a Stack with spec.approval.
type PlanStatus struct {
	// Name of the Update that made the plan. What it would change is in the status of that Update.
	// +required
	Name string `json:"name"`

	// Digest of the plan: of its inputs, what it changes, and the state that it was made for.
	// +optional
	Digest string `json:"digest,omitempty"`

	// ChangesDigest is the digest without the state. A plan that is made again with the same one keeps its approvals.
	// +optional
	ChangesDigest string `json:"changesDigest,omitempty"`

	// InputsDigest is the digest of the inputs alone.
	// +optional
	InputsDigest string `json:"inputsDigest,omitempty"`

	// Enforce is how the update is held to the plan.
	// +optional
	Enforce autov1alpha1.PlanEnforcement `json:"enforce,omitempty"`

	// State of the plan.
	// +required
	State PlanState `json:"state"`

	// Operation that was planned.
	// +required
	Operation ApprovedOperation `json:"operation"`

	// Cause is why there is a plan.
	// +optional
	Cause PlanCause `json:"cause,omitempty"`

	// Summary counts the resources that the plan creates (+), updates (~), replaces (+-) and deletes (-), for example "+2 ~1 +-1 -0".
	// +optional
	Summary string `json:"summary,omitempty"`

	// Changes is how many resources the plan changes. One that changes none needs no approval.
	// +optional
	Changes int64 `json:"changes,omitempty"`

	// Destructive is how many of them it deletes or replaces.
	// +optional
	Destructive int64 `json:"destructive,omitempty"`

	// ExpiresAt is until when the plan can be approved and carried out.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`

	// Approvals of the plan, at most 10.
	// +listType=atomic
	// +optional
	Approvals []PlanApproval `json:"approvals,omitempty"`

	// RejectedBy is who rejected the plan.
	// +optional
	RejectedBy string `json:"rejectedBy,omitempty"`

	// CarriedFrom is the plan that the approvals are from.
	// +optional
	CarriedFrom string `json:"carriedFrom,omitempty"`

	// Update is the name of the Update that carried the plan out, or was to.
	// +optional
	Update string `json:"update,omitempty"`

	// Stale counts the plans with the same changes in a row that were out of date.
	// +optional
	Stale int64 `json:"stale,omitempty"`

	// StaleSince is when the last of them was found.
	// +optional
	StaleSince *metav1.Time `json:"staleSince,omitempty"`

	// Trigger says what asked for the change.
	// +optional
	Trigger string `json:"trigger,omitempty"`

	// Drift is the digest of the drift that the plan corrects.
	// +optional
	Drift string `json:"drift,omitempty"`

	// Generation of the Stack that the plan is for.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// SpecDigest identifies the specification of the Stack.
	// +optional
	SpecDigest string `json:"specDigest,omitempty"`

	// Commit that the plan is for.
	// +optional
	Commit string `json:"commit,omitempty"`

	// Revision of the source.
	// +optional
	Revision string `json:"revision,omitempty"`

	// ContentDigest identifies the content of the source.
	// +optional
	ContentDigest string `json:"contentDigest,omitempty"`

	// ReferencesDigest identifies the versions of the watched Secrets and ConfigMaps.
	// +optional
	ReferencesDigest string `json:"referencesDigest,omitempty"`
}

// PlanApproval is who approved a plan, and when.
type PlanApproval struct {
	// By is the user who approved.
	// +required
	By string `json:"by"`

	// At is when.
	// +required
	At metav1.Time `json:"at"`

	// Reason that was given.
	// +optional
	Reason string `json:"reason,omitempty"`
}
