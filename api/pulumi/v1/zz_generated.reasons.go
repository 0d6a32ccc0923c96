// Code generated from internal/report/reasons by make generate. DO NOT EDIT.

package v1

// Reasons of the conditions of Stacks.
const (
	// ProcessingCompletedReason (ready): The last update succeeded, and no other one is due.
	ProcessingCompletedReason = "ProcessingCompleted"
	// NotReadyInProgressReason (in progress): An operation is running or about to start. `Reconciling` has the reason `StackProcessing`, and the message describes the progress. A Stack that was deleted in the foreground waits for the garbage collector, and one that was created again for the end of the earlier Workspace.
	NotReadyInProgressReason = "NotReadyInProgress"
	// StackProcessingReason (in progress): The reason of `Reconciling` while `Ready` has the reason `NotReadyInProgress`.
	StackProcessingReason = "StackProcessing"
	// ProgressingWithRetryReason (waiting): The reason of `Reconciling` if something is missing or has failed. `Ready` has the specific reason. If that is `PrerequisiteNotSatisfied`, `RetryingAfterFailure`, `PreviewFailed`, `UpdateInterrupted` or `UpdateConflict`, `Reconciling` has the same reason instead.
	ProgressingWithRetryReason = "ProgressingWithRetry"
	// PulumiStacksLeftReason (Stalled): The Stack is deleted, and it deployed other Pulumi stacks before its `spec.stack`, `spec.backend` or project was changed. `.status.leftStacks` has them.
	PulumiStacksLeftReason = "PulumiStacksLeft"
	// SourceNotFoundReason (waiting): The object in `fluxSource.sourceRef` does not exist.
	SourceNotFoundReason = "SourceNotFound"
	// SourceNotReadyReason (waiting): The source failed and has no artifact, or the Program is invalid. The message is that of the source.
	SourceNotReadyReason = "SourceNotReady"
	// ArtifactNotFoundReason (waiting): The source has not published an artifact yet.
	ArtifactNotFoundReason = "ArtifactNotFound"
	// SourceNotVerifiedReason (waiting or Stalled): The Stack or the controller requires verified sources, and Flux has not verified the artifact. Stalled if sources of this kind cannot be verified.
	SourceNotVerifiedReason = "SourceNotVerified"
	// SourceKindNotInstalledReason (waiting): The cluster does not serve the kind of the source.
	SourceKindNotInstalledReason = "SourceKindNotInstalled"
	// AccessDeniedReason (waiting or Stalled): Stalled: the source or an object in `dependsOn` is in another namespace, an object in `dependsOn` is of a kind that `--dependency-kinds` does not list, or the source is an `ExternalArtifact` and that feature gate is off; or a Stack in another namespace does not share an output that `spec.inputs` uses. Waiting: the controller is not allowed to read the source or the object, or an output in `spec.inputs` is secret and is shared only if it is not.
	AccessDeniedReason = "AccessDenied"
	// SourceUnavailableReason (waiting): The git server cannot be used, because of DNS, the connection, a timeout, a certificate or an error of the server. A deployed Stack reports it only after a second failure in a row.
	SourceUnavailableReason = "SourceUnavailable"
	// AuthenticationFailedReason (waiting): The git server rejects the credentials, or requires some.
	AuthenticationFailedReason = "AuthenticationFailed"
	// HostKeyUnknownReason (waiting): The SSH server has a key that is not a known host key. The controller has sent nothing to it.
	HostKeyUnknownReason = "HostKeyUnknown"
	// RepositoryNotFoundReason (waiting): The repository does not exist, or is not visible with these credentials. Many git servers do not distinguish the two.
	RepositoryNotFoundReason = "RepositoryNotFound"
	// RevisionNotFoundReason (waiting): The branch, tag or commit does not exist in the repository.
	RevisionNotFoundReason = "RevisionNotFound"
	// RateLimitedReason (waiting): The git server limits the rate of requests.
	RateLimitedReason = "RateLimited"
	// LFSPointersReason (waiting): The commit contains Git LFS pointers, which are not supported with `projectRepo`.
	LFSPointersReason = "LFSPointers"
	// ArtifactFetchFailedReason (waiting): The artifact cannot be downloaded.
	ArtifactFetchFailedReason = "ArtifactFetchFailed"
	// ArtifactDigestMismatchReason (waiting): The downloaded artifact does not match its digest. Nothing was run.
	ArtifactDigestMismatchReason = "ArtifactDigestMismatch"
	// ArtifactTooLargeReason (waiting or Stalled): The artifact exceeds a limit. Stalled if the Stack needs the artifact to create an Update. Waiting if a commit of `projectRepo` is too large, or if an existing Update has to fetch the artifact again.
	ArtifactTooLargeReason = "ArtifactTooLarge"
	// ArtifactUnusableReason (waiting or Stalled): The artifact is not a gzip-compressed tarball, or contains paths outside of its root. Stalled if the Stack needs the artifact to create an Update, waiting if an existing Update has to fetch it again.
	ArtifactUnusableReason = "ArtifactUnusable"
	// RolloutNotFoundReason (waiting): A new Stack waits, because there is no StackRollout with the name in `rolloutRef` that admits it. A Stack that has been updated before keeps what it has, and shows this reason in the condition `Held`.
	RolloutNotFoundReason = "RolloutNotFound"
	// WaveNotOpenReason (waiting): A new Stack waits for its turn in its StackRollout, which has no revision yet that reached all Stacks. A Stack that has been updated before keeps what it has, and shows this reason in the condition `Held`.
	WaveNotOpenReason = "WaveNotOpen"
	// WindowClosedReason (Stalled): `spec.windows` allow no update now, and somebody has edited the Stack, has asked for an update, or deletes the Stack. The message says when that changes. If only the source, a Secret, drift or a resync asks for an update, the Stack stays Ready, and shows this reason in the condition `Held`.
	WindowClosedReason = "WindowClosed"
	// RevisionNotKeptReason (waiting): The Stack has to be updated for another reason than a new revision, such as an edit. The revision that it has is no longer kept, and the newer one waits for its turn.
	RevisionNotKeptReason = "RevisionNotKept"
	// SpecInvalidReason (Stalled): The spec is invalid. The message names the field. Examples are an invalid URL in `projectRepo`, both or neither of `branch` and `commit`, git credentials that are not in a Secret, a Flux source of a kind that publishes no artifact, and `sourcePaths` that take too long to match against the files of the artifact. Or the Stack, its Workspace, or a Stack that it depends on takes too much memory.
	SpecInvalidReason = "SpecInvalid"
	// PrerequisiteNotSatisfiedReason (waiting): A Stack in `prerequisites` does not exist, is not Ready, has not succeeded, or succeeded too long ago.
	PrerequisiteNotSatisfiedReason = "PrerequisiteNotSatisfied"
	// DependencyNotReadyReason (waiting): A Stack or another object in `dependsOn`, or a Stack in `inputs`, does not exist or is not Ready, or a Stack has not deployed the revision of the common Flux source yet; or its `readyExpr` is false, cannot be evaluated, or exceeds a limit; or the cluster does not have its kind.
	DependencyNotReadyReason = "DependencyNotReady"
	// InvalidCELExpressionReason (Stalled): A `readyExpr` in `dependsOn` does not compile, does not return a bool, is too large or too complex, or reads a field that is not allowed.
	InvalidCELExpressionReason = "InvalidCELExpression"
	// DependencyCycleReason (Stalled): Stacks depend on each other through `prerequisites`, `dependsOn` or `inputs`. The message shows the cycle.
	DependencyCycleReason = "DependencyCycle"
	// SuspendedReason (Stalled): The Stack is suspended. Either it was deleted and has resources to destroy, or an update was running when it was suspended and has ended. In other cases a suspended Stack keeps its conditions; check `.spec.suspend`.
	SuspendedReason = "Suspended"
	// DependentsExistReason (waiting): The Stack was deleted, has `destroyAfterDependents`, and other Stacks name it in `dependsOn` or `prerequisites`, or use one of its outputs in `inputs`. The message names up to five of them, starting with those that are not being deleted.
	DependentsExistReason = "DependentsExist"
	// WorkspaceInUseReason (waiting): The Stack was deleted and has nothing to destroy, but an Update that you created runs in its Workspace, which is deleted with the Stack.
	WorkspaceInUseReason = "WorkspaceInUse"
	// SecretNotFoundReason (waiting): A Secret, a ConfigMap or a key of one does not exist. The message names it and what needs it.
	SecretNotFoundReason = "SecretNotFound"
	// WorkspaceNotReadyReason (waiting): The Workspace has a problem that can resolve itself. The message has its reason in parentheses. This does not count as a failed attempt.
	WorkspaceNotReadyReason = "WorkspaceNotReady"
	// PulumiVersionTooLowReason (Stalled): The Pulumi CLI of the Workspace is older than 3.202.0 and the configuration has values that are not strings, or the CLI is not version 3.
	PulumiVersionTooLowReason = "PulumiVersionTooLow"
	// WorkspaceFailedReason (Stalled): The Workspace is Stalled, or the API server, an admission webhook or RBAC rejects the Workspace or the Update, or an object of that name exists that does not belong to the Stack. The message says which.
	WorkspaceFailedReason = "WorkspaceFailed"
	// NamespaceTerminatingReason (Stalled): The namespace is being deleted, so the objects that are needed to destroy the resources cannot be created.
	NamespaceTerminatingReason = "NamespaceTerminating"
	// RetryingAfterFailureReason (failed): An attempt failed. The message has its number, the error, and the time of the next attempt.
	RetryingAfterFailureReason = "RetryingAfterFailure"
	// StackLostReason (failed): The stack was deployed before, and its backend no longer has it. Nothing was run.
	StackLostReason = "StackLost"
	// StateUpgradeRequiredReason (failed, Stalled at once): The self-managed backend has the layout of Pulumi before 3.61, or the stack only in that layout. Nothing was run or created.
	StateUpgradeRequiredReason = "StateUpgradeRequired"
	// PolicyViolationReason (failed, Stalled at once): Policies that Pulumi Cloud enforces refused the update, and nothing else explains why it failed. The message names the resources and the policies, and says whether something was changed.
	PolicyViolationReason = "PolicyViolation"
	// PreviewFailedReason (failed): An attempt to run a preview failed.
	PreviewFailedReason = "PreviewFailed"
	// UpdateFailedReason (failed, Stalled): Three attempts with the same inputs failed, or six attempts in a row were interrupted. Stalled, so that a Kustomization that waits for the Stack fails.
	UpdateFailedReason = "UpdateFailed"
	// UpdateInterruptedReason (interrupted): More than three attempts in a row were interrupted from outside. The first three are repeated at once, later ones with backoff.
	UpdateInterruptedReason = "UpdateInterrupted"
	// AwaitingResourcesReason (waiting): The provider of a resource does not wait for it because it takes long. The message names such resources. Pulumi has done all that does not depend on them. Not a failure.
	AwaitingResourcesReason = "AwaitingResources"
	// UpdateConflictReason (waiting, Stalled after 10 minutes): Another process has locked the stack. The message says who, and since when. Stalled after 10 minutes, so that a Kustomization that waits for the Stack fails.
	UpdateConflictReason = "UpdateConflict"
	// ApprovalRequiredReason (Stalled): The plan of a change of the source or the spec, or of a request, waits for its approval. The message says how to show and to approve the plan. A plan for a resync or for drift does not change `Ready`.
	ApprovalRequiredReason = "ApprovalRequired"
	// PlanRejectedReason (Stalled): Somebody rejected the plan. Nothing was changed.
	PlanRejectedReason = "PlanRejected"
	// PlanStaleReason (waiting): Several approved plans in a row were out of date before they could be carried out, because the inputs or the state had changed. Nothing was changed.
	PlanStaleReason = "PlanStale"
	// PlanViolatedReason (failed): Pulumi refused a step of the program that is not in the approved plan. The controller makes another plan.
	PlanViolatedReason = "PlanViolated"
	// PlanTooLargeReason (failed): The plan is too large to be kept.
	PlanTooLargeReason = "PlanTooLarge"
	// OutputsNotWrittenReason (waiting or Stalled): The update succeeded, but an object of `spec.outputs` could not be written, or all outputs could not be stored. The message has the answer of the API server. The objects keep what they have, and no update runs for it.
	OutputsNotWrittenReason = "OutputsNotWritten"
	// OutputsConflictReason (Stalled): An object of `spec.outputs` exists, and the Stack has not created it. It is not changed.
	OutputsConflictReason = "OutputsConflict"
	// OutputSecretReason (Stalled): A ConfigMap of `spec.outputs` asks for an output that is secret, or has a secret in it. The ConfigMap is not written.
	OutputSecretReason = "OutputSecret"
	// OutputNotFoundReason (Stalled): An object of `spec.outputs` asks for an output, or a path in one, that the stack does not have, or of which Pulumi does not know the value, as after an update of a part of the stack. The object is not written.
	OutputNotFoundReason = "OutputNotFound"
	// InputNotFoundReason (waiting): An object, key or output of `spec.inputs` does not exist, and the input has no `default`, or an output exists and is not stored now. The message names it.
	InputNotFoundReason = "InputNotFound"
	// OutputsTooLargeReason (Stalled): The outputs for an object of `spec.outputs` have more than 1 MiB, or one of them is too large to be stored, or has more parts than a path can be looked for in. The object is not written.
	OutputsTooLargeReason = "OutputsTooLarge"
	// NoDriftReason (ready): The reason of `Drifted`: no resource was changed outside of Pulumi.
	NoDriftReason = "NoDrift"
	// DriftDetectedReason (ready): The reason of `Drifted`: resources were changed or removed outside of Pulumi. `Ready` does not change.
	DriftDetectedReason = "DriftDetected"
	// DriftComesBackReason (ready): The reason of `Drifted`: the same drift came back after three corrections within an hour, and is no longer corrected.
	DriftComesBackReason = "DriftComesBack"
	// DriftCheckFailedReason (ready): The reason of `Drifted`: the last check failed, and the message says why. `Ready` does not change.
	DriftCheckFailedReason = "DriftCheckFailed"
	// ProgressingReason (not used): Flux's controllers use this reason while they work on an object.
	ProgressingReason = "Progressing"
	// NotReadyStalledReason (not used): The Pulumi Kubernetes Operator uses this reason for a Stack that is Stalled.
	NotReadyStalledReason = "NotReadyStalled"
)

// Reasons of the conditions of Programs.
const (
	// ProgramInvalidReason (Stalled): The Program cannot be rendered, and its Stacks are not updated. The message has the path of the problem, for example `program.runtime`.
	ProgramInvalidReason = "ProgramInvalid"
)
