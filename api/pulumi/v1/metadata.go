package v1

// Finalizer is on every Stack, on every Update of a Stack, and on every other Update from just before its operation starts. It is removed
// from an Update that has ended, and from a Stack whose resources are destroyed or need not be destroyed.
const Finalizer = "finalizer.stack.pulumi.com"

// Annotations on a Stack.
const (
	// ReconcileRequestAnnotation requests an update: a new update runs when the value differs from the value that was handled last. The value
	// can be any text; a time is usual. Flux's annotation reconcile.fluxcd.io/requestedAt has the same effect. An Update has the annotation of
	// the request that it answers.
	ReconcileRequestAnnotation = "pulumi.com/reconciliation-request"

	// LastUpdateAnnotation requests an update in the same way. Tutorials for the Pulumi Kubernetes Operator use it.
	LastUpdateAnnotation = "pulumi.com/last-update"

	// StackGenerationAnnotation on an Update is the generation of the Stack that it was created for.
	StackGenerationAnnotation = "pulumi.com/stack-generation"

	// SpecDigestAnnotation on an Update identifies the specification of the Stack that it was created for.
	SpecDigestAnnotation = "pulumi.com/spec-digest"

	// ReferencesDigestAnnotation on an Update identifies the versions of the Secrets and ConfigMaps that the Stack's controller saw
	// when it created the Update.
	ReferencesDigestAnnotation = "pulumi.com/references-digest"

	// InputValuesDigestAnnotation on an Update identifies the values of spec.inputs that the Stack's controller read before it created the
	// Update, and from the start of the operation on those that it is started with. InputVersionsDigestAnnotation identifies the versions of what
	// they were read from.
	InputValuesDigestAnnotation   = "pulumi.com/input-values-digest"
	InputVersionsDigestAnnotation = "pulumi.com/input-versions-digest"

	// ContentDigestAnnotation on an Update identifies the content of the source that the stack consists of.
	ContentDigestAnnotation = "pulumi.com/content-digest"

	// SourceTimeAnnotation on an Update that runs a new revision is the time when the source changed, in RFC 3339. It is set only if updates
	// are traced.
	SourceTimeAnnotation = "pulumi.com/source-time"

	// CancelUpdateAnnotation set to "true" on a suspended Stack stops its running update gracefully: the Stack controller copies the
	// annotation to the Update. On an Update, the annotation stops the operation gracefully, and the Update is kept as a record.
	CancelUpdateAnnotation = "pulumi.com/cancel-update"

	// DriftCheckAnnotation requests a check for drift now, when its value differs from the value that was handled last. It has an effect only
	// with spec.drift.
	DriftCheckAnnotation = "pulumi.com/drift-check"

	// DriftUpdateAnnotation on an Update that checks for drift is the name of the last update of the Stack at the time of the check. On an
	// Update that corrects drift, it is the digest of that drift.
	DriftUpdateAnnotation = "pulumi.com/drift"

	// PlanCauseAnnotation on an Update that makes the plan of a Stack is the cause of the plan: Change, Resync or Drift.
	PlanCauseAnnotation = "pulumi.com/plan-cause"

	// CreateMissingStackAnnotation set to "true" allows an update to create a Pulumi stack that was deployed before and that the backend does
	// not have any longer. All resources of the stack are then created anew.
	CreateMissingStackAnnotation = "pulumi.com/create-missing-stack"

	// DeployedStackAnnotation on a Stack records that an operation may have created resources. Its value is the name of the Pulumi stack, or
	// empty if there is none yet. The controller uses it if the status of the Stack is lost, for example after the Stack was restored from a
	// backup without status.
	DeployedStackAnnotation = "pulumi.com/deployed-stack"

	// ReleaseRevisionAnnotation on a Stack with spec.rolloutRef or spec.windows lets it have the revision with this full name or checksum, for
	// example "sha1:…", before its turn and outside of its windows.
	ReleaseRevisionAnnotation = "pulumi.com/release-revision"

	// OrphanAnnotation set to "true" allows a Stack to be deleted without destroying its resources, even with destroyOnFinalize.
	OrphanAnnotation = "pulumi.com/orphan"
)

// ApprovalRequiredAnnotation set to "true" on the Workspace of a Stack records that the Stack has spec.approval. If the Stack does not exist
// any longer, nothing runs in such a Workspace.
const ApprovalRequiredAnnotation = "pulumi.com/approval-required"

// Labels on the Workspace and the Updates of a Stack.
const (
	// ComponentLabel holds the purpose of an object of a Stack: ComponentStack, or ComponentDriftCheck on the Update that checks for drift.
	ComponentLabel = "pulumi.com/component"

	// StackNameLabel holds the name of the Stack that the Workspace or Update belongs to.
	StackNameLabel = "pulumi.com/stack-name"

	// ComponentStack is the value of ComponentLabel on the Workspace and the Updates of a Stack.
	ComponentStack = "stack"

	// ComponentDriftCheck is the value of ComponentLabel on the Update that checks a Stack for drift.
	ComponentDriftCheck = "drift-check"
)

// StackUIDLabel on a Secret or a ConfigMap with outputs holds the UID of the Stack that has created it.
const StackUIDLabel = "pulumi.com/stack-uid"

// StackNameAnnotation on a Secret or a ConfigMap with outputs holds the name of the Stack that has created it. A Stack of this name that has
// another UID, because it was restored from a backup or created again, takes over what its predecessor has left.
const StackNameAnnotation = "pulumi.com/stack-name"

// SecretOutputMask replaces the value of a secret output in the status of a Stack.
const SecretOutputMask = "[secret]"
