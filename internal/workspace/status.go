package workspace

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// eventIgnored is the reason of the event that says that fields of the spec have no effect.
const eventIgnored = "PodTemplateIgnored"

// apply changes the status to what was decided.
func (d decision) apply(workspace *autov1alpha1.Workspace) {
	switch d.state {
	case stateReady:
		conditions.Delete(workspace, autov1alpha1.WorkspaceReconciling)
		conditions.Delete(workspace, autov1alpha1.WorkspaceStalled)
		conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, d.reason, "%s", d.message)
	case stateStalled:
		conditions.MarkStalled(workspace, d.reason, "%s", d.message)
		conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, d.reason, "%s", d.message)
	case stateFailing:
		conditions.MarkReconciling(workspace, meta.ProgressingWithRetryReason, "%s", d.message)
		conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, d.reason, "%s", d.message)
	case stateStarting, stateDeleting:
		conditions.MarkReconciling(workspace, meta.ProgressingReason, "%s", d.message)
		conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, d.reason, "%s", d.message)
	}
	if d.state == stateDeleting {
		return
	}
	workspace.Status.Address = d.address
	workspace.Status.PulumiVersion = d.pulumiVersion
	if d.state == stateReady || d.state == stateStalled {
		// Only what has come to an end counts as observed.
		workspace.Status.ObservedGeneration = workspace.Generation
	}
}

// announce records the events: a failure when it begins, and once per generation that fields have no effect. It is called
// with the Workspace as it was, once its status is written: a write that fails is repeated, an event must not be.
func (r *Reconciler) announce(workspace *autov1alpha1.Workspace, d decision) {
	if d.state == stateFailing || d.state == stateStalled {
		if conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) != d.reason {
			r.Event(workspace, corev1.EventTypeWarning, d.reason, d.message)
		}
	}
	runtime, ok := r.Runtime.(Ignorer)
	if !ok || d.state != stateReady || workspace.Status.ObservedGeneration == workspace.Generation {
		return
	}
	if fields := runtime.Ignores(workspace); len(fields) > 0 {
		r.Eventf(workspace, corev1.EventTypeNormal, eventIgnored,
			"fields of spec that have no effect: %s; programs run as processes of the controller, not in pods", strings.Join(fields, ", "))
	}
}
