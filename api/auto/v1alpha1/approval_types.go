package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApprovalKind is the kind of an Approval.
const ApprovalKind = "Approval"

// ApprovalAccepted is the condition of an Approval that reports whether the Approval counts.
const ApprovalAccepted = "Accepted"

// ApprovalDecision is the decision of a user about a plan, or about a revision.
// +kubebuilder:validation:Enum=Approve;Reject
type ApprovalDecision string

const (
	// ApprovalApprove allows the plan to be carried out, or the wave to begin.
	ApprovalApprove ApprovalDecision = "Approve"

	// ApprovalReject prevents the plan from being carried out, or the revision from reaching other Stacks. Until the update starts, a
	// rejection overrides all approvals.
	ApprovalReject ApprovalDecision = "Reject"
)

// ApprovalSpec is a decision about one plan of a Stack, or about one revision of a StackRollout.
//
// +kubebuilder:validation:XValidation:rule="has(self.update) != has(self.rollout)",message="set either update, with digest, or rollout, with revision"
// +kubebuilder:validation:XValidation:rule="has(self.update) == has(self.digest) && has(self.rollout) == has(self.revision)",message="set update with digest, and rollout with revision"
// +kubebuilder:validation:XValidation:rule="!has(self.wave) || has(self.rollout)",message="wave is only for a StackRollout"
type ApprovalSpec struct {
	// Update is the name of the Update that made the plan, in the same namespace. It is status.plan.name of the Stack.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Update string `json:"update,omitempty"`

	// Digest of the plan: status.plan.digest of the Stack. The Approval is valid only for the plan with this digest.
	// +kubebuilder:validation:Pattern="^sha256:[0-9a-f]{64}$"
	// +optional
	Digest string `json:"digest,omitempty"`

	// Rollout is the name of a StackRollout in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Rollout string `json:"rollout,omitempty"`

	// Revision that the decision is about: status.target.revision of the StackRollout, or its full checksum, for example "sha1:…". The Approval
	// is valid only while this revision is the target.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Revision string `json:"revision,omitempty"`

	// Wave that may begin. Without it, all waves may, and do not wait for the end of a soak.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Wave string `json:"wave,omitempty"`

	// Decision is Approve or Reject. Until the update starts, a rejection overrides all approvals.
	// +required
	Decision ApprovalDecision `json:"decision"`

	// Reason for the decision, for example the number of a change request.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Reason string `json:"reason,omitempty"`

	// By is the name of the user who decides, as the API server knows it. With the admission policy of the installation, it must be the user
	// who creates the Approval.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +required
	By string `json:"by"`
}

// ApprovalStatus reports whether the Approval counts.
type ApprovalStatus struct {
	// Conditions of the Approval: Accepted, which reports whether the Approval counts. It is set once and does not change afterwards.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// TargetDigest is the digest of the target for which the Approval of a revision was accepted: it counts for the same content under another
	// name, and not for other content under the same one.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	TargetDigest string `json:"targetDigest,omitempty"`
}

// GetConditions returns the conditions of the Approval.
func (in *Approval) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the Approval.
func (in *Approval) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// Approval is the decision of one user about one plan of a Stack, or about one revision of a StackRollout. It cannot be changed.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories={pulumi,fluxcd}
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/substitute=disabled"
// +kubebuilder:printcolumn:name="Update",type=string,JSONPath=`.spec.update`
// +kubebuilder:printcolumn:name="Rollout",type=string,JSONPath=`.spec.rollout`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.spec.decision`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.by`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=10,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=10,JSONPath=`.spec.digest`
// +kubebuilder:printcolumn:name="Revision",type=string,priority=10,JSONPath=`.spec.revision`
// +kubebuilder:printcolumn:name="Wave",type=string,priority=10,JSONPath=`.spec.wave`
type Approval struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the decision.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an Approval cannot be changed; create another one"
	// +required
	Spec ApprovalSpec `json:"spec"`

	// Status reports whether the Approval counts.
	// +optional
	Status ApprovalStatus `json:"status,omitempty"`
}

// ApprovalList is a list of Approvals.
//
// +kubebuilder:object:root=true
type ApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Approval `json:"items"`
}
