package v1alpha1

import "github.com/fluxcd/pkg/apis/meta"

// Condition types of a Workspace.
const (
	// WorkspaceReady is True when operations can run in the Workspace.
	WorkspaceReady = meta.ReadyCondition

	// WorkspaceStalled is True when the Workspace cannot become ready before somebody changes it.
	WorkspaceStalled = meta.StalledCondition

	// WorkspaceReconciling is True while the Workspace is being made ready.
	WorkspaceReconciling = meta.ReconcilingCondition
)

// Reasons of the conditions of a Workspace.
const (
	// SucceededReason says that the Workspace is ready.
	SucceededReason = meta.SucceededReason

	// DeletingReason says that the Workspace is being deleted.
	DeletingReason = "Deleting"

	// RollingUpdateReason says that the pod of the Workspace is being replaced.
	RollingUpdateReason = "RollingUpdate"

	// WaitingForReplicasReason says that the pod of the Workspace is not ready yet.
	WaitingForReplicasReason = "WaitingForReplicas"

	// ConnectionFailedReason says that the agent of the Workspace does not answer.
	ConnectionFailedReason = "ConnectionFailed"

	// UnauthenticatedReason says that the agent does not accept the identity of the controller.
	UnauthenticatedReason = "Unauthenticated"

	// PermissionDeniedReason says that the controller may not use the agent.
	PermissionDeniedReason = "PermissionDenied"

	// InstallingReason says that the dependencies of the program are being installed. It is of the Pulumi Kubernetes Operator and never set
	// here.
	InstallingReason = "Installing"

	// InstallationFailedReason says that the dependencies of the program could not be installed. It is of the Pulumi Kubernetes Operator
	// and never set here; see InstallFailedReason.
	InstallationFailedReason = "InstallationFailed"

	// InitializingReason says that the agent starts, or that a stack is being selected and configured.
	InitializingReason = "Initializing"

	// InitializationFailedReason says that the agent could not start, or that a stack could not be selected or configured.
	InitializationFailedReason = "InitializationFailed"

	// IncompatibleConfigurationReason says that the pulumi CLI of the Workspace is too old for its configuration.
	IncompatibleConfigurationReason = "IncompatibleConfiguration"
)

// Reasons of the conditions of a Workspace that say why its pod is missing or does not work. Unless they say otherwise the
// Workspace becomes ready by itself when the cause is gone.
const (
	// PodTemplateInvalidReason says that spec.podTemplate cannot be merged into a pod. The Workspace has to be changed.
	PodTemplateInvalidReason = "PodTemplateInvalid"

	// ObjectRejectedReason says that the API server does not accept the StatefulSet, the Service or the Secret of the
	// Workspace as they are.
	ObjectRejectedReason = "ObjectRejected"

	// NameConflictReason says that an object with the name that one of the Workspace needs belongs to somebody else.
	NameConflictReason = "NameConflict"

	// NamespaceTerminatingReason says that nothing can be created because the namespace is being deleted.
	NamespaceTerminatingReason = "NamespaceTerminating"

	// PodCreationFailedReason says that the pod cannot be created, for a reason that has no name of its own here.
	PodCreationFailedReason = "PodCreationFailed"

	// QuotaExceededReason says that a ResourceQuota leaves no room for the pod, or for another object of the Workspace.
	QuotaExceededReason = "QuotaExceeded"

	// PodSecurityViolationReason says that the Pod Security Standard of the namespace does not allow the pod.
	PodSecurityViolationReason = "PodSecurityViolation"

	// ServiceAccountNotFoundReason says that the ServiceAccount of the Workspace does not exist.
	ServiceAccountNotFoundReason = "ServiceAccountNotFound"

	// UnschedulableReason says that no node takes the pod.
	UnschedulableReason = "Unschedulable"

	// ImagePullFailedReason says that the image of a container cannot be pulled, or has a name that is none.
	ImagePullFailedReason = "ImagePullFailed"

	// ImageArchitectureMismatchReason says that an image is built for another processor architecture than that of the node.
	ImageArchitectureMismatchReason = "ImageArchitectureMismatch"

	// ContainerCreationFailedReason says that a container cannot be created or started.
	ContainerCreationFailedReason = "ContainerCreationFailed"

	// VolumeMountFailedReason says that a volume cannot be attached or mounted.
	VolumeMountFailedReason = "VolumeMountFailed"

	// PodStartFailedReason says that the node cannot start the pod, for example for lack of a network.
	PodStartFailedReason = "PodStartFailed"

	// CrashLoopBackOffReason says that a container ends again and again.
	CrashLoopBackOffReason = "CrashLoopBackOff"

	// PodFailedReason says that the pod ended as a whole, for example because it was evicted from its node.
	PodFailedReason = "PodFailed"

	// PodTerminatingReason says that the pod is ending because somebody deleted it or it has to leave its node.
	PodTerminatingReason = "PodTerminating"

	// NodeLostReason says that the node of the pod does not answer.
	NodeLostReason = "NodeLost"
)

// Condition types of an Update.
const (
	// UpdateProgressing is True from the start of the operation until it ended.
	UpdateProgressing = "Progressing"

	// UpdateFailed is True when the operation ended without success.
	UpdateFailed = "Failed"

	// UpdateComplete is True when the operation ended, with or without success.
	UpdateComplete = "Complete"
)

// Reasons of the conditions Progressing and Complete of an Update, and of Failed=False.
const (
	// UpdateProgressingReason says that the operation was accepted and has not ended.
	UpdateProgressingReason = "Progressing"

	// UpdateWorkspaceNotFoundReason says that the Workspace of the Update does not exist.
	UpdateWorkspaceNotFoundReason = "WorkspaceNotFound"

	// UpdateWorkspaceNotReadyReason says that the Update waits for its Workspace.
	UpdateWorkspaceNotReadyReason = "WorkspaceNotReady"

	// UpdateTransientFailureReason says that something went wrong before the operation could start, and that it is tried again.
	UpdateTransientFailureReason = "TransientFailure"

	// UpdateSucceededReason says that the operation succeeded (condition Failed=False).
	UpdateSucceededReason = "UpdateSucceeded"

	// UpdateUpdatedReason says that the operation succeeded (condition Complete=True).
	UpdateUpdatedReason = "Updated"

	// UpdateCompleteReason says that the operation succeeded (condition Progressing=False).
	UpdateCompleteReason = "Complete"

	// UpdateEndedFailedReason says that the operation ended without success (conditions Progressing=False and Complete=True).
	UpdateEndedFailedReason = "Failed"
)

// Reasons of the condition Failed=True of an Update.
const (
	// UpdateFailedReason says that pulumi ran and failed.
	UpdateFailedReason = "UpdateFailed"

	// UnknownReason says that the operation failed and that the cause is not known.
	UnknownReason = "Unknown"

	// AbortedReason says that the Update was given up before its operation started. It is of the Pulumi Kubernetes Operator and never set
	// here.
	AbortedReason = "Aborted"

	// CanceledReason says that the operation was ended on request.
	CanceledReason = "Canceled"

	// InterruptedReason says that pulumi or its agent was ended from outside; the operation may be run again.
	InterruptedReason = "Interrupted"

	// TimeoutReason says that the operation took longer than its timeout and was ended.
	TimeoutReason = "Timeout"

	// ProjectInvalidReason says that the program cannot be used as it is: no Pulumi.yaml, broken YAML, a directory outside of the
	// source, an unknown runtime.
	ProjectInvalidReason = "ProjectInvalid"

	// InstallFailedReason says that the dependencies of the program could not be installed.
	InstallFailedReason = "InstallFailed"

	// StackNotFoundReason says that the stack does not exist and may not be created.
	StackNotFoundReason = "StackNotFound"

	// StackLostReason says that the stack was deployed before, and that the backend does not have it any more.
	StackLostReason = "StackLost"

	// UpdateConflictReason says that another process holds the lock of the stack.
	UpdateConflictReason = "UpdateConflict"

	// InvalidAccessTokenReason says that the backend refused the credentials, or that none were given.
	InvalidAccessTokenReason = "InvalidAccessToken"

	// SecretsProviderFailedReason says that the passphrase, or another key of the secrets provider, is missing or wrong.
	SecretsProviderFailedReason = "SecretsProviderFailed"

	// ConfigInvalidReason says that the configuration of the stack cannot be used.
	ConfigInvalidReason = "ConfigInvalid"

	// UnexpectedChangesReason says that there were changes although none were expected.
	UnexpectedChangesReason = "UnexpectedChanges"
)
