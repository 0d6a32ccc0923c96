package v1

import "github.com/fluxcd/pkg/apis/meta"

// Reasons of the condition Ready of a Stack.
const (
	// ProcessingCompletedReason says that the last update succeeded and nothing asks for another one (Ready=True).
	ProcessingCompletedReason = "ProcessingCompleted"

	// NotReadyInProgressReason says that work is going on (Ready=False or Unknown).
	NotReadyInProgressReason = "NotReadyInProgress"

	// NotReadyStalledReason says that nothing goes on until somebody acts (Ready=False). It is of the Pulumi Kubernetes Operator and
	// never set here: Ready has the reason of Stalled.
	NotReadyStalledReason = "NotReadyStalled"
)

// Reasons of the condition Reconciling of a Stack.
const (
	// StackProcessingReason says that the Stack is being worked on.
	StackProcessingReason = "StackProcessing"

	// RetryingAfterFailureReason says that an update failed and is tried again.
	RetryingAfterFailureReason = "RetryingAfterFailure"

	// PreviewFailedReason says that a preview failed and is tried again.
	PreviewFailedReason = "PreviewFailed"

	// PrerequisiteNotSatisfiedReason says that another Stack in prerequisites is not up to date.
	PrerequisiteNotSatisfiedReason = "PrerequisiteNotSatisfied"

	// DependencyNotReadyReason says that another Stack in dependsOn is not ready.
	DependencyNotReadyReason = meta.DependencyNotReadyReason

	// DependentsExistReason says that the Stack is destroyed when the Stacks that depend on it are gone.
	DependentsExistReason = "DependentsExist"

	// WorkspaceInUseReason says that a Stack that is being deleted goes when an operation of somebody else in its Workspace has ended.
	WorkspaceInUseReason = "WorkspaceInUse"

	// ProgressingReason says that the object is being worked on. A Stack has StackProcessingReason instead.
	ProgressingReason = meta.ProgressingReason

	// ProgressingWithRetryReason says that something failed or is waited for, and that it is tried again.
	ProgressingWithRetryReason = meta.ProgressingWithRetryReason

	// UpdateInterruptedReason says that an update was ended from outside and is run again.
	UpdateInterruptedReason = "UpdateInterrupted"

	// WorkspaceNotReadyReason says that an update waits for a Workspace that does not become ready, for a cause that somebody may
	// have to mend. It is tried again all the same.
	WorkspaceNotReadyReason = "WorkspaceNotReady"
)

// Reasons about the source of a Stack.
const (
	// SourceUnavailableReason says that the source cannot be had, for a cause that none of the following names.
	SourceUnavailableReason = "SourceUnavailable"

	// SourceNotFoundReason says that the source object does not exist.
	SourceNotFoundReason = "SourceNotFound"

	// SourceNotReadyReason says that the source object is not ready.
	SourceNotReadyReason = "SourceNotReady"

	// ArtifactNotFoundReason says that the source has not published an artifact.
	ArtifactNotFoundReason = "ArtifactNotFound"

	// SourceKindNotInstalledReason says that the cluster does not know the kind of the source.
	SourceKindNotInstalledReason = "SourceKindNotInstalled"

	// AuthenticationFailedReason says that the git server does not accept the credentials, or wants some.
	AuthenticationFailedReason = "AuthenticationFailed"

	// HostKeyUnknownReason says that the ssh server is not one whose key is known, so that nothing was sent to it.
	HostKeyUnknownReason = "HostKeyUnknown"

	// RepositoryNotFoundReason says that the git server has no such repository, or does not show it with these credentials.
	RepositoryNotFoundReason = "RepositoryNotFound"

	// RevisionNotFoundReason says that the repository has no such branch, tag or commit.
	RevisionNotFoundReason = "RevisionNotFound"

	// RateLimitedReason says that the git server asks to come back later.
	RateLimitedReason = "RateLimited"

	// LFSPointersReason says that the commit has pointers to files in Git LFS instead of these files.
	LFSPointersReason = "LFSPointers"

	// AccessDeniedReason says that a reference to another namespace is not allowed, or that the controller may not read the
	// referenced object.
	AccessDeniedReason = "AccessDenied"

	// ArtifactFetchFailedReason says that the artifact could not be downloaded.
	ArtifactFetchFailedReason = "ArtifactFetchFailed"

	// ArtifactDigestMismatchReason says that the downloaded content is not what the source published. It was not run.
	ArtifactDigestMismatchReason = "ArtifactDigestMismatch"

	// ArtifactTooLargeReason says that the artifact exceeds a size limit of the controller.
	ArtifactTooLargeReason = "ArtifactTooLarge"

	// ArtifactUnusableReason says that the artifact is not an archive that can be unpacked safely.
	ArtifactUnusableReason = "ArtifactUnusable"
)

// Reasons of the condition Stalled of a Stack, some of which also explain Ready=False.
const (
	// SpecInvalidReason says that the specification can never work.
	SpecInvalidReason = "SpecInvalid"

	// SecretNotFoundReason says that a referenced Secret or ConfigMap, or a key in it, does not exist.
	SecretNotFoundReason = "SecretNotFound"

	// PulumiVersionTooLowReason says that the pulumi CLI of the Workspace is too old for this Stack.
	PulumiVersionTooLowReason = "PulumiVersionTooLow"

	// WorkspaceFailedReason says that the Workspace cannot become ready.
	WorkspaceFailedReason = "WorkspaceFailed"

	// UpdateFailedReason says that updates keep failing.
	UpdateFailedReason = "UpdateFailed"

	// UpdateConflictReason says that another process holds the lock of the stack.
	UpdateConflictReason = "UpdateConflict"

	// StackLostReason says that the stack was deployed before, and that the backend does not have it any more.
	StackLostReason = "StackLost"

	// NamespaceTerminatingReason says that the namespace is being deleted, so that nothing can be created in it to destroy the
	// stack's resources.
	NamespaceTerminatingReason = "NamespaceTerminating"

	// DependencyCycleReason says that Stacks wait for each other, through prerequisites or dependsOn.
	DependencyCycleReason = "DependencyCycle"

	// InvalidCELExpressionReason says that a readyExpr in dependsOn cannot be used.
	InvalidCELExpressionReason = meta.InvalidCELExpressionReason
)

// Reasons of the conditions of a Program.
const (
	// ProgramInvalidReason says that the program cannot be run (Ready=False, Stalled=True).
	ProgramInvalidReason = "ProgramInvalid"
)

// SuspendedReason says that the Stack is suspended.
const SuspendedReason = meta.SuspendedReason
