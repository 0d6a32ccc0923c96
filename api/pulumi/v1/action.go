package v1

// Action is what the controller did when an event occurred, for the field action of Flux's events.
type Action string

// The actions of the events of all kinds.
const (
	// ReconcileAction compares an object with what exists. It is the action of each event without a more specific one.
	ReconcileAction Action = "Reconcile"
	// ResolveSourceAction finds the source of a program, its artifact or its commit, and fetches and verifies it.
	ResolveSourceAction Action = "ResolveSource"
	// CheckDependenciesAction looks at the Stacks and other prerequisites that a Stack waits for.
	CheckDependenciesAction Action = "CheckDependencies"
	// RolloutAction brings a revision to Stacks wave by wave, or waits for the turn of a Stack.
	RolloutAction Action = "Rollout"
	// PrepareWorkspaceAction starts the pod of a Workspace, and installs what the program needs.
	PrepareWorkspaceAction Action = "PrepareWorkspace"
	// UpdateAction runs an operation of Pulumi.
	UpdateAction Action = "Update"
	// ApproveAction makes a plan, and compares it with its approvals.
	ApproveAction Action = "Approve"
	// DetectDriftAction looks for changes that were made outside of Pulumi, or corrects them.
	DetectDriftAction Action = "DetectDrift"
	// FinalizeAction destroys or releases what a deleted object has.
	FinalizeAction Action = "Finalize"
)
