package v1alpha1

// PlanEnforcement says what makes sure that an operation does what its plan says.
//
// +kubebuilder:validation:Enum=Plan;Inputs
type PlanEnforcement string

const (
	// EnforcePlan compares the inputs and the state with those of the plan, and constrains Pulumi to each step of it.
	EnforcePlan PlanEnforcement = "Plan"

	// EnforceInputs compares the inputs and the state with those of the plan, and leaves the rest to the program.
	EnforceInputs PlanEnforcement = "Inputs"
)

// PlanReference names the plan that an operation carries out. The stack, the program, the options and the Workspace have to be those that
// it was made with.
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

	// Enforce says what makes sure that no more is done than the plan says. With Plan, Pulumi refuses every step that is not in the plan,
	// before anything is changed. Inputs is for programs that it refuses without need: then the inputs and the state have to be those of the
	// plan. Without it, it is Plan. A destroy does not need the file of Pulumi.
	// +optional
	Enforce PlanEnforcement `json:"enforce,omitempty"`
}

// SavedPlan identifies a plan. Its digests tell nothing about values: they are made with a key that only those know who can read the
// Secrets of the Workspace.
type SavedPlan struct {
	// Digest is of changesDigest and stateDigest: it is another one when anything differs. This is what an approval is for.
	// +required
	Digest string `json:"digest"`

	// ChangesDigest is of the inputs and of what would be changed, with the old and new values. A plan that is made again with equal inputs
	// and changes has the same, whatever else changed in the state.
	// +required
	ChangesDigest string `json:"changesDigest"`

	// InputsDigest is of the inputs: the content of the program, the configuration and the environment with the values of Secrets, the
	// options, and the version of Pulumi.
	// +required
	InputsDigest string `json:"inputsDigest"`

	// StateDigest is of the state of the stack for which the plan was made.
	// +required
	StateDigest string `json:"stateDigest"`

	// FileDigest is of Pulumi's file as it is in the Secrets, compressed. Empty when it is not kept.
	// +optional
	FileDigest string `json:"fileDigest,omitempty"`

	// TextDigest is of the changes as text as they are in the Secrets, compressed.
	// +optional
	TextDigest string `json:"textDigest,omitempty"`

	// PulumiVersion is the version of the pulumi CLI that made the plan.
	// +optional
	PulumiVersion string `json:"pulumiVersion,omitempty"`

	// Size of Pulumi's file in bytes; 0 when it is not kept.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Size int64 `json:"size,omitempty"`

	// StoredSize is what of it is in the Secrets, compressed, in bytes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	StoredSize int64 `json:"storedSize,omitempty"`

	// Unknowns is how many values are known only when the plan is carried out.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Unknowns int64 `json:"unknowns,omitempty"`

	// Secrets are the names of the Secrets that hold the plan, in their order: in all of them together Pulumi's file, and in the last one
	// the changes as text, both compressed with gzip.
	// +kubebuilder:validation:MaxItems=9
	// +listType=atomic
	// +optional
	Secrets []string `json:"secrets,omitempty"`
}
