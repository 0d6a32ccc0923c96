package v1alpha1

import "github.com/fluxcd/pkg/apis/meta"

// Condition types of a Workspace.
const (
	// WorkspaceReady is True when operations can run in the Workspace.
	WorkspaceReady = meta.ReadyCondition

	// WorkspaceStalled is True when the Workspace has a problem that a user should look at. The controller still retries what can be retried.
	WorkspaceStalled = meta.StalledCondition

	// WorkspaceReconciling is True while the Workspace is being made ready.
	WorkspaceReconciling = meta.ReconcilingCondition
)

// Condition types of an Update.
const (
	// UpdateProgressing is True from the start of the operation until its end.
	UpdateProgressing = "Progressing"

	// UpdateFailed is True when the Update ended without success.
	UpdateFailed = "Failed"

	// UpdateComplete is True when the Update ended, with or without success.
	UpdateComplete = "Complete"
)
