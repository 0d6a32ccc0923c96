package update

import (
	"fmt"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// decideOnWorkspace waits until operations can run in the Workspace.
func decideOnWorkspace(workspace *autov1alpha1.Workspace) decision {
	d := waitOn(autov1alpha1.UpdateWorkspaceNotReadyReason, workspaceProblem(workspace), byWorkspace)
	if conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) == autov1alpha1.IncompatibleConfigurationReason {
		d.reason = autov1alpha1.IncompatibleConfigurationReason
	}
	d.brief = conditions.IsTrue(workspace, autov1alpha1.WorkspaceReady)
	return d
}

// workspaceProblem returns why operations cannot run in the Workspace; empty when they can. A Ready condition of an earlier generation does
// not count: the agent may be about to be replaced.
func workspaceProblem(workspace *autov1alpha1.Workspace) string {
	ready := conditions.Get(workspace, autov1alpha1.WorkspaceReady)
	switch name := workspace.Name; {
	case !workspace.DeletionTimestamp.IsZero():
		return fmt.Sprintf("workspace %q is being deleted", name)
	case ready == nil:
		return fmt.Sprintf("workspace %q is not ready yet", name)
	case !workspace.CanRunOperations():
		return fmt.Sprintf("workspace %q is not ready: %s: %s", name, ready.Reason, ready.Message)
	case ready.Reason == autov1alpha1.IdleReason:
		return fmt.Sprintf("workspace %q is idle, and its agent is being started", name)
	case workspace.Status.ObservedGeneration != workspace.Generation:
		return fmt.Sprintf("workspace %q is being changed", name)
	}
	return ""
}

// waitForShard waits for a Workspace that belongs to the controller of another shard: two controllers would start two agents.
func waitForShard(workspace *autov1alpha1.Workspace) decision {
	return waitOn(autov1alpha1.UpdateWorkspaceNotFoundReason, fmt.Sprintf("workspace %q is one of another controller, by its labels and "+
		"--watch-label-selector; give the update the labels of its workspace", workspace.Name), byWorkspace)
}
