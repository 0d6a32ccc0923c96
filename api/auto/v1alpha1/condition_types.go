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

	// InstallingReason says that the dependencies of the program are being installed.
	InstallingReason = "Installing"

	// InstallationFailedReason says that the dependencies of the program could not be installed.
	InstallationFailedReason = "InstallationFailed"

	// InitializingReason says that the agent starts, or that a stack is being selected and configured.
	InitializingReason = "Initializing"

	// InitializationFailedReason says that the agent could not start, or that a stack could not be selected or configured.
	InitializationFailedReason = "InitializationFailed"

	// IncompatibleConfigurationReason says that the pulumi CLI of the Workspace is too old for its configuration.
	IncompatibleConfigurationReason = "IncompatibleConfiguration"
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

	// AbortedReason says that the Update was given up before its operation started.
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
