package v1

// Finalizer is on every Stack, and on an Update that has not ended. It is removed from a Stack when its resources were
// destroyed, or need not be.
const Finalizer = "finalizer.stack.pulumi.com"

// Annotations on a Stack.
const (
	// ReconcileRequestAnnotation asks for an update: when its value differs from the one of the last update, a new update
	// runs. The value is free; a time is usual. Flux's reconcile.fluxcd.io/requestedAt is understood too.
	// An Update has the one of them that it answers.
	ReconcileRequestAnnotation = "pulumi.com/reconciliation-request"

	// LastUpdateAnnotation asks for an update in the same way, as tutorials for the Pulumi Kubernetes Operator have it.
	LastUpdateAnnotation = "pulumi.com/last-update"

	// StackGenerationAnnotation on an Update is the generation of the Stack that it was created for.
	StackGenerationAnnotation = "pulumi.com/stack-generation"

	// SpecDigestAnnotation on an Update identifies the specification of the Stack that it was created for.
	SpecDigestAnnotation = "pulumi.com/spec-digest"

	// ReferencesDigestAnnotation on an Update identifies the versions of the Secrets and ConfigMaps that the Stack's controller saw
	// when it created the Update.
	ReferencesDigestAnnotation = "pulumi.com/references-digest"

	// ContentDigestAnnotation on an Update identifies the content of the source that the Stack is made of.
	ContentDigestAnnotation = "pulumi.com/content-digest"

	// SourceTimeAnnotation on an Update that follows a change of its source is the time of that change, in RFC 3339. It is there when
	// updates are traced.
	SourceTimeAnnotation = "pulumi.com/source-time"

	// CancelUpdateAnnotation set to "true" on a suspended Stack ends its running update gracefully. On an Update it ends that one, which stays
	// as a record; the Stack's controller puts it there.
	CancelUpdateAnnotation = "pulumi.com/cancel-update"

	// DriftCheckAnnotation asks for a check for drift now, when its value differs from the one that was last seen. It needs spec.drift.
	DriftCheckAnnotation = "pulumi.com/drift-check"

	// DriftUpdateAnnotation on an Update that looks for drift names the update of the Stack that it looks at. On one that corrects drift, it
	// is the digest of that drift.
	DriftUpdateAnnotation = "pulumi.com/drift"

	// PlanCauseAnnotation on an Update that makes the plan of a Stack says why there is one: Change, Resync or Drift.
	PlanCauseAnnotation = "pulumi.com/plan-cause"

	// CreateMissingStackAnnotation set to "true" lets an update create the Pulumi stack of a Stack that was deployed before and that the
	// backend does not have any more. All of its resources are created anew then.
	CreateMissingStackAnnotation = "pulumi.com/create-missing-stack"

	// DeployedStackAnnotation is what the controller remembers of a Stack whose status is lost, such as one that was restored from a backup
	// without it: that an operation may have created resources, and the name of the Pulumi stack once there is one.
	DeployedStackAnnotation = "pulumi.com/deployed-stack"

	// OrphanAnnotation set to "true" lets a Stack be deleted without destroying its resources, whatever destroyOnFinalize says.
	OrphanAnnotation = "pulumi.com/orphan"
)

// Labels on the Workspace and the Updates of a Stack.
const (
	// ComponentLabel tells what an object was made for; it is ComponentStack on the objects of a Stack.
	ComponentLabel = "pulumi.com/component"

	// StackNameLabel holds the name of the Stack that the Workspace or Update belongs to.
	StackNameLabel = "pulumi.com/stack-name"

	// ComponentStack is the value of ComponentLabel on the Workspace and the Updates of a Stack.
	ComponentStack = "stack"

	// ComponentDriftCheck is the value of ComponentLabel on the Update with which a Stack looks for drift.
	ComponentDriftCheck = "drift-check"
)

// SecretOutputMask stands for the value of a secret output in the status of a Stack.
const SecretOutputMask = "[secret]"
