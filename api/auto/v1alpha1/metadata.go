package v1alpha1

// Labels of the objects that belong to a Workspace or an Update.
const (
	// ComponentLabel holds what an object is part of; its values are the Component constants. It is on the StatefulSet, the Service, the
	// Secrets and the pod of a Workspace, and on the Secrets with the outputs and the plan of an Update.
	ComponentLabel = "auto.pulumi.com/component"

	// WorkspaceNameLabel holds the name of the Workspace that the StatefulSet, Service, Secret or pod belongs to, shortened if it is too long
	// for a label.
	WorkspaceNameLabel = "auto.pulumi.com/workspace-name"

	// UpdateNameLabel holds the name of the Update that the Secret belongs to, shortened if it is too long for a label.
	UpdateNameLabel = "auto.pulumi.com/update-name"

	// ComponentWorkspace is the value of ComponentLabel on the objects that run a Workspace.
	ComponentWorkspace = "workspace"

	// ComponentUpdate is the value of ComponentLabel on the Secrets with the outputs and the plan of an Update.
	ComponentUpdate = "update"
)

// Annotations of the objects that belong to a Workspace or an Update.
const (
	// InitializedAnnotation is "true" on a pod that the Pulumi Kubernetes Operator has prepared. This controller does not set it: the
	// condition Ready of the Workspace reports when operations can run.
	InitializedAnnotation = "auto.pulumi.com/initialized"

	// RevisionHashAnnotation is on the pod template of a Workspace; a different value replaces the pod.
	RevisionHashAnnotation = "auto.pulumi.com/revision-hash"

	// WorkspaceGenerationAnnotation on an Update is the generation of the Workspace for which the Update was created. The Update does not
	// start while the Workspace has an earlier generation.
	WorkspaceGenerationAnnotation = "auto.pulumi.com/workspace-generation"

	// NotStartedAnnotation is on an Update that was created while its Workspace could not run it. It is removed before the operation is started,
	// so as long as it is there, the operation was not started.
	NotStartedAnnotation = "auto.pulumi.com/not-started"

	// SecretOutputsAnnotation is on the outputs Secret of an Update. It holds a JSON array with the keys, in this Secret, of the outputs that
	// Pulumi treats as secret.
	SecretOutputsAnnotation = "pulumi.com/secrets"

	// ShownOutputsAnnotation is on the outputs Secret of an Update that has outputs that are not secret but contain the text of a secret of
	// the stack. It holds a JSON object that maps the keys of these outputs to what the status of the Stack shows: their values with "[secret]"
	// in place of these parts.
	ShownOutputsAnnotation = "pulumi.com/shown-outputs"

	// OutputNamesAnnotation is on the outputs Secret of an Update that has outputs whose names cannot be keys of a Secret. It holds a JSON
	// object that maps the keys of these outputs to their names.
	OutputNamesAnnotation = "pulumi.com/output-names"

	// OmittedOutputsAnnotation is on the outputs Secret of an Update that has more outputs than a Secret can hold. It holds a JSON array with
	// the names of the outputs that are not in the Secret; if there are very many, only the first ones.
	OmittedOutputsAnnotation = "pulumi.com/omitted-outputs"

	// UnknownOutputsAnnotation is on the outputs Secret of an Update after which Pulumi did not know the values of some outputs. It holds a JSON
	// array with their names.
	UnknownOutputsAnnotation = "pulumi.com/unknown-outputs"
)

// UpdateWasDeleted is in status.outputsNotStored of an Update that was deleted before its outputs could be stored. That says nothing about
// the outputs of the next one.
const UpdateWasDeleted = "the update was deleted"

// Names of the objects that belong to a Workspace or an Update.
const (
	// OutputsSecretSuffix is appended to the name of an Update to get the name of the Secret with the stack's outputs:
	// one key per output, each holding its value as JSON.
	OutputsSecretSuffix = "-stack-outputs"

	// PlanSecretInfix is between the name of an Update and a number, starting at 0, in the names of the Secrets with its plan.
	PlanSecretInfix = "-plan-"

	// PlanKeySuffix is appended to the name of a Workspace to get the name of the Secret with the key for the digests of its plans.
	PlanKeySuffix = "-plan-key"

	// PlanFileKey is the key of Pulumi's plan file in the Secrets with a plan. The file is compressed with gzip as a whole, and each Secret
	// has a part of the result.
	PlanFileKey = "plan.json.gz"

	// PlanTextKey is the key of the changes as text in the last of the Secrets with a plan, compressed with gzip. The text contains values in
	// plain text, except those that Pulumi knows as secret.
	PlanTextKey = "changes.txt.gz"

	// WorkspaceObjectSuffix is appended to the name of a Workspace to get the name of its StatefulSet and Service.
	WorkspaceObjectSuffix = "-workspace"

	// PulumiContainerName is the name of the container in which Pulumi runs; pod templates customize it by this name.
	PulumiContainerName = "pulumi"
)
