package v1alpha1

import "cmp"

// PlanEnforcement defines how an operation is held to its plan.
//
// +kubebuilder:validation:Enum=Plan;Inputs
type PlanEnforcement string

const (
	// EnforcePlan requires the inputs and the state to be those of the plan, and lets Pulumi refuse each step that is not in the plan.
	EnforcePlan PlanEnforcement = "Plan"

	// EnforceInputs requires the inputs and the state to be those of the plan. Pulumi does not compare the steps with the plan.
	EnforceInputs PlanEnforcement = "Inputs"
)

// OrDefault returns EnforcePlan for the empty value.
func (e PlanEnforcement) OrDefault() PlanEnforcement { return cmp.Or(e, EnforcePlan) }

// PlanReference names the plan that an operation carries out. The stack, the program, the options and the Workspace must be those with
// which the plan was made.
type PlanReference struct {
	// Name of the Update in the same namespace that saved the plan.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`

	// Digest of the plan, as in its status.plan.digest. A plan with another digest is not carried out.
	// +kubebuilder:validation:Pattern="^sha256:[0-9a-f]{64}$"
	// +required
	Digest string `json:"digest"`

	// Enforce defines how the operation is held to the plan. With Plan, the default, Pulumi refuses every step that is not in the plan, before
	// anything is changed. With Inputs, only the inputs and the state must be those of the plan, for programs that Pulumi refuses by mistake.
	// A destroy does not need Pulumi's plan file.
	// +optional
	Enforce PlanEnforcement `json:"enforce,omitempty"`
}

// SavedPlan identifies a plan. The digests of inputs, changes and state reveal nothing about values: they are made with a key, which only
// users who can read the Secrets of the Workspace know.
type SavedPlan struct {
	// Digest is the digest of the other digests. It differs when anything in the plan, or in the text that describes it, differs. An Approval
	// refers to it.
	// +required
	Digest string `json:"digest"`

	// ChangesDigest is the digest of the values (see valuesDigest) and of the changes, with their old and new values. A plan that is made
	// again with equal values and changes has the same changesDigest, whatever else changed in the state.
	// +required
	ChangesDigest string `json:"changesDigest"`

	// InputsDigest is the digest of the inputs: the content of the program, the configuration and the environment with the values of Secrets,
	// the options, and the version of Pulumi.
	// +required
	InputsDigest string `json:"inputsDigest"`

	// ValuesDigest is the digest of the inputs without the program and its source, the targets and the options that read the resources. A
	// correction of drift has the same valuesDigest as the last update if no value has changed since.
	// +optional
	ValuesDigest string `json:"valuesDigest,omitempty"`

	// StateDigest is the digest of the state of the stack for which the plan was made.
	// +required
	StateDigest string `json:"stateDigest"`

	// FileDigest is the digest of Pulumi's plan file as it is in the Secrets, compressed. It is empty if the file is not kept.
	// +optional
	FileDigest string `json:"fileDigest,omitempty"`

	// TextDigest is the digest of the changes as text, as they are in the Secrets, compressed.
	// +optional
	TextDigest string `json:"textDigest,omitempty"`

	// PulumiVersion is the version of the pulumi CLI that made the plan.
	// +optional
	PulumiVersion string `json:"pulumiVersion,omitempty"`

	// Size of Pulumi's plan file in bytes, or 0 if the file is not kept.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Size int64 `json:"size,omitempty"`

	// StoredSize is the size of Pulumi's plan file as it is in the Secrets, compressed, in bytes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	StoredSize int64 `json:"storedSize,omitempty"`

	// Unknowns is how many values become known only when the plan is carried out.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Unknowns int64 `json:"unknowns,omitempty"`

	// Secrets are the names of the Secrets that hold the plan, in order. Together they contain Pulumi's plan file, and the last one also
	// contains the changes as text, both compressed with gzip.
	// +kubebuilder:validation:MaxItems=9
	// +listType=atomic
	// +optional
	Secrets []string `json:"secrets,omitempty"`
}
