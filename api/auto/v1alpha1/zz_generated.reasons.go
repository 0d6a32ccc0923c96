// Code generated from internal/report/reasons by make generate. DO NOT EDIT.

package v1alpha1

// Reasons of the conditions of Updates.
const (
	// QueuedReason (in progress): An older Update of the same Workspace comes first, the agent is busy, or as many operations run as `--max-operations` allows.
	QueuedReason = "Queued"
	// UpdateWorkspaceNotFoundReason (waiting): The Workspace does not exist, or is one of the controller of another shard.
	UpdateWorkspaceNotFoundReason = "WorkspaceNotFound"
	// UpdateWorkspaceNotReadyReason (waiting): The Workspace is not ready. The message has its reason.
	UpdateWorkspaceNotReadyReason = "WorkspaceNotReady"
	// ArtifactPendingReason (in progress): The source is being resolved, downloaded or checked out.
	ArtifactPendingReason = "ArtifactPending"
	// IncompatibleConfigurationReason (waiting): The Pulumi CLI of the Workspace is too old for the operation, or is not version 3.
	IncompatibleConfigurationReason = "IncompatibleConfiguration"
	// SourceDeliveryReason (in progress): The artifact is being sent to the agent.
	SourceDeliveryReason = "SourceDelivery"
	// UpdateTransientFailureReason (transient): A call to the agent or to the API server failed.
	UpdateTransientFailureReason = "TransientFailure"
	// UnknownReason (failed): The operation failed, and the agent reports no cause, or one that this version of the controller does not know.
	UnknownReason = "Unknown"
	// CanceledReason (failed, unless suspended): The Update was deleted, or canceled with the annotation `pulumi.com/cancel-update`. If the Stack is suspended, this does not count as a failed attempt.
	CanceledReason = "Canceled"
	// InterruptedReason (ended, not a failure): Pulumi, its agent or its pod was stopped from outside. Not a failure: the Stack repeats the operation. An operation that changes nothing and was lost with its workspace is first run once more.
	InterruptedReason = "Interrupted"
	// TimeoutReason (failed): The operation took longer than `spec.timeout` and was stopped gracefully.
	TimeoutReason = "Timeout"
	// ProjectInvalidReason (failed): There is no `Pulumi.yaml` in the directory, it cannot be parsed, the directory is outside of the source, or the image does not have the language.
	ProjectInvalidReason = "ProjectInvalid"
	// InstallFailedReason (failed): `pulumi install` failed, or took longer than 30 minutes.
	InstallFailedReason = "InstallFailed"
	// StackNotFoundReason (failed): The stack does not exist in the backend, and `useLocalStackOnly` does not allow creating it.
	StackNotFoundReason = "StackNotFound"
	// UpdateConflictReason (ended, not a failure): Another process has locked the stack.
	UpdateConflictReason = "UpdateConflict"
	// InvalidAccessTokenReason (failed): The backend rejects the credentials, or there are none.
	InvalidAccessTokenReason = "InvalidAccessToken"
	// SecretsProviderFailedReason (failed): The passphrase or key is missing or wrong, or the stack cannot be re-encrypted with another `secretsProvider`.
	SecretsProviderFailedReason = "SecretsProviderFailed"
	// ConfigInvalidReason (failed): The configuration is invalid, for example because of an invalid key, a missing required value or invalid JSON, or the agent rejects the request.
	ConfigInvalidReason = "ConfigInvalid"
	// UnexpectedChangesReason (failed): There were changes with `expectNoChanges`, or drift with `expectNoRefreshChanges`.
	UnexpectedChangesReason = "UnexpectedChanges"
	// StackLostReason (failed): The stack was deployed before, and its backend no longer has it. Nothing was run.
	StackLostReason = "StackLost"
	// StateUpgradeRequiredReason (failed): The self-managed backend has the layout of Pulumi before 3.61, or the stack only in that layout. Nothing was run or created.
	StateUpgradeRequiredReason = "StateUpgradeRequired"
	// PolicyViolationReason (failed): Violated policies are all that explains why Pulumi failed. The message has the first line of each policy, and says whether something was changed.
	PolicyViolationReason = "PolicyViolation"
	// AwaitingResourcesReason (ended, not a failure): The provider of a resource does not wait for it because it takes long. The message names such resources. Pulumi has done all that does not depend on them.
	AwaitingResourcesReason = "AwaitingResources"
	// PlanStaleReason (ended, not a failure): The plan in `spec.plan` is out of date: the state, the inputs or the Pulumi CLI changed after it was made, or the plan was deleted or changed. With `savePlan`: the state changed while the plan was made. Nothing was changed.
	PlanStaleReason = "PlanStale"
	// PlanViolatedReason (failed): Pulumi refused a step of the program that is not in the plan. The message names resources and properties, and says whether something was changed.
	PlanViolatedReason = "PlanViolated"
	// PlanTooLargeReason (failed): The plan has more than 8 × 900 KiB compressed, or more than 64 MiB, and is not saved.
	PlanTooLargeReason = "PlanTooLarge"
	// UpdateFailedReason (failed): Pulumi ran and failed, because of the program, a provider or a cloud.
	UpdateFailedReason = "UpdateFailed"
	// UpdateProgressingReason (in progress): The reason of all three conditions while the operation runs (`Progressing=True`) or has not started. `.status.state` and `.status.message` describe the progress.
	UpdateProgressingReason = "Progressing"
	// UpdateCompleteReason (succeeded): The reason of `Progressing=False` when the operation succeeded.
	UpdateCompleteReason = "Complete"
	// UpdateUpdatedReason (succeeded): The reason of `Complete=True` when the operation succeeded.
	UpdateUpdatedReason = "Updated"
	// UpdateSucceededReason (succeeded): The reason of `Failed=False` when the operation succeeded.
	UpdateSucceededReason = "UpdateSucceeded"
	// UpdateEndedFailedReason (failed): The reason of `Progressing=False` and `Complete=True` when the operation ended without success.
	UpdateEndedFailedReason = "Failed"
	// ApprovalRequiredReason (failed): The Workspace is that of a Stack with `spec.approval`, and the Update would change something without being the approved plan of that Stack. Nothing was run. An Update of the Stack itself waits instead.
	ApprovalRequiredReason = "ApprovalRequired"
	// AbortedReason (failed): The Update does not describe an operation: its type is not an operation, or it has no stack name.
	AbortedReason = "Aborted"
)

// Reasons of the conditions of Workspaces.
const (
	// SucceededReason (ready): Operations can run.
	SucceededReason = "Succeeded"
	// IdleReason (ready): The Workspace had nothing to do for its `idleTimeout`, and no pod runs. The next Update starts one.
	IdleReason = "Idle"
	// InitializingReason (in progress): The pod is starting, or the agent with the process runtime. The message describes the progress, for example that an image is being pulled.
	InitializingReason = "Initializing"
	// WaitingForReplicasReason (in progress): The StatefulSet has no pod yet.
	WaitingForReplicasReason = "WaitingForReplicas"
	// RollingUpdateReason (in progress): The pod is being replaced because the Workspace changed, or because the controller has another version of the agent. A running operation is finished first, and the message says so. The controller does not wait for an agent that has not answered for two minutes.
	RollingUpdateReason = "RollingUpdate"
	// PodTerminatingReason (in progress): The pod was deleted, for example because its node is drained, and another one follows. Or a pod of this name belongs to another object.
	PodTerminatingReason = "PodTerminating"
	// DeletingReason (in progress): The Workspace is being deleted, or objects of an earlier Workspace of the same name are.
	DeletingReason = "Deleting"
	// PodTemplateInvalidReason (Stalled): The pod template is invalid. The message names each field and the problem.
	PodTemplateInvalidReason = "PodTemplateInvalid"
	// ObjectRejectedReason (waiting or Stalled): The API server, an admission webhook or RBAC rejects the StatefulSet, the Service or the Secret. Stalled if the object is invalid.
	ObjectRejectedReason = "ObjectRejected"
	// NameConflictReason (Stalled): `NAME-workspace` or `NAME-workspace-rpc` belongs to another object, or has no owner and was not created for this Workspace, or the Secret has no usable certificate. The controller does not change it.
	NameConflictReason = "NameConflict"
	// NamespaceTerminatingReason (waiting): The namespace is being deleted, or does not exist.
	NamespaceTerminatingReason = "NamespaceTerminating"
	// QuotaExceededReason (waiting): The pod exceeds a ResourceQuota, or the quota requires requests and limits that are not set.
	QuotaExceededReason = "QuotaExceeded"
	// PodSecurityViolationReason (waiting): The pod violates the Pod Security Standard of the namespace.
	PodSecurityViolationReason = "PodSecurityViolation"
	// ServiceAccountNotFoundReason (waiting): The ServiceAccount does not exist.
	ServiceAccountNotFoundReason = "ServiceAccountNotFound"
	// PodCreationFailedReason (waiting): The pod cannot be created for another reason, usually an admission webhook.
	PodCreationFailedReason = "PodCreationFailed"
	// UnschedulableReason (waiting): No node can run the pod. The message is that of the scheduler.
	UnschedulableReason = "Unschedulable"
	// ImagePullFailedReason (waiting or Stalled): An image cannot be pulled. Stalled only if the name of the image is invalid.
	ImagePullFailedReason = "ImagePullFailed"
	// ImageArchitectureMismatchReason (waiting or Stalled): The image is for another processor architecture than that of the node.
	ImageArchitectureMismatchReason = "ImageArchitectureMismatch"
	// ContainerCreationFailedReason (waiting or Stalled): A container cannot be created or started, for example because a container of yours needs a Secret or ConfigMap that does not exist, runs as root where that is not allowed, or has a command that does not exist.
	ContainerCreationFailedReason = "ContainerCreationFailed"
	// VolumeMountFailedReason (waiting): A volume cannot be attached or mounted.
	VolumeMountFailedReason = "VolumeMountFailed"
	// PodStartFailedReason (waiting): The node cannot start the pod, for example because its network plugin does not work.
	PodStartFailedReason = "PodStartFailed"
	// CrashLoopBackOffReason (waiting or Stalled): A container exits repeatedly. Its log has the cause: `kubectl logs … --previous`. Stalled after five restarts, if the container did not run for ten minutes before the last one.
	CrashLoopBackOffReason = "CrashLoopBackOff"
	// PodFailedReason (waiting): The pod failed, for example because it was evicted. Another one follows.
	PodFailedReason = "PodFailed"
	// NodeLostReason (waiting): The node does not respond, or the pod has not ended within its grace period.
	NodeLostReason = "NodeLost"
	// InitializationFailedReason (waiting or Stalled): The process runtime cannot start an agent; Stalled after five attempts, and attempts continue. Or the last operation, which the message names, could not select or configure its stack; Stalled, and the next operation still runs.
	InitializationFailedReason = "InitializationFailed"
	// ConnectionFailedReason (transient): The pod is ready, but the agent cannot be reached, or the API server did not answer while the Workspace was edited, not ready, or needed again after it was idle. The message says which.
	ConnectionFailedReason = "ConnectionFailed"
	// UnauthenticatedReason (waiting or Stalled): The agent rejects the token of the controller. Or the backend rejected the credentials of the last operation, which the message names; Stalled, and the next operation still runs.
	UnauthenticatedReason = "Unauthenticated"
	// PermissionDeniedReason (transient): The agent knows the caller and does not allow the call.
	PermissionDeniedReason = "PermissionDenied"
	// InstallingReason (not used): The Pulumi Kubernetes Operator uses this reason while it installs dependencies.
	InstallingReason = "Installing"
	// InstallationFailedReason (Stalled): The last operation, which the message names, could not install the dependencies of its program. The next operation still runs.
	InstallationFailedReason = "InstallationFailed"
)

// Reasons of the conditions of Approvals.
const (
	// ApprovalCountsReason (ready): The Approval is about the plan of the Stack, with exactly its digest.
	ApprovalCountsReason = "ApprovalCounts"
	// PlanNotFoundReason (Stalled): There is no Update with this name that has saved a plan, or it was created after the Approval.
	PlanNotFoundReason = "PlanNotFound"
	// DigestMismatchReason (Stalled): The plan has another digest.
	DigestMismatchReason = "DigestMismatch"
	// PlanSupersededReason (Stalled): The Stack has another plan, or has already carried out this one.
	PlanSupersededReason = "PlanSuperseded"
	// PlanRejectedReason (Stalled): Somebody rejected the plan before. An approval cannot take a rejection back.
	PlanRejectedReason = "PlanRejected"
	// RevisionNotTargetReason (Stalled): The StackRollout rolls out another revision, and did not get to this one within ten minutes; or the revision was its target before, or is not written in full.
	RevisionNotTargetReason = "RevisionNotTarget"
	// WaveNotFoundReason (Stalled): The StackRollout has no wave of this name.
	WaveNotFoundReason = "WaveNotFound"
	// PlanExpiredReason (Stalled): The plan was not approved in time, and is made again.
	PlanExpiredReason = "PlanExpired"
)

// Reasons of the conditions of StackRollouts.
const (
	// RolloutCompleteReason (ready): All waves are complete with the revision that the source offers. `Complete` is true. Stacks that failed, as far as `maxFailures` allows it, those that were broken before, and those that are left out may not have it: `.status.done` counts the others.
	RolloutCompleteReason = "RolloutComplete"
	// RolloutProgressingReason (ready): Stacks of a wave are being updated, or wait; the message says for what. The StackRollout is Ready meanwhile; `Complete` says when all waves are complete.
	RolloutProgressingReason = "Progressing"
	// RolloutSoakingReason (ready): All Stacks of a wave have the revision, and the next wave waits for the end of its `soak`.
	RolloutSoakingReason = "Soaking"
	// RolloutSuspendedReason (ready): `spec.suspend` is true: no other Stack gets the revision.
	RolloutSuspendedReason = "Suspended"
	// RolloutWindowClosedReason (ready): `spec.windows` allow no update now: no other Stack gets the revision. The message says when that changes.
	RolloutWindowClosedReason = "WindowClosed"
	// PromotionRequiredReason (ready): The next wave has `promotion: Manual`, and waits until somebody has approved the revision.
	PromotionRequiredReason = "PromotionRequired"
	// RevisionRejectedReason (Stalled): Somebody has rejected the revision, so no other Stack gets it. The message says who.
	RevisionRejectedReason = "RevisionRejected"
	// RolloutHaltedReason (waiting or Stalled): More Stacks of a wave failed than `maxFailures` allows, so no other Stack gets the revision. Stalled as soon as one of them is Stalled itself. `.status.failing` has the Stacks and their messages.
	RolloutHaltedReason = "RolloutHalted"
	// DependencyInLaterWaveReason (Stalled): A Stack depends on one in a later wave, which waits for it. Nothing is updated. A commit that may change nothing for that one makes it wait for up to five minutes first.
	DependencyInLaterWaveReason = "DependencyInLaterWave"
)
