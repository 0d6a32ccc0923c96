package stack

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// trouble is why operations cannot run in a Workspace, where it is something that somebody may have to mend.
type trouble struct {
	// reason goes into the Stack's conditions.
	reason string
	// stalled says that the Workspace sees no way out by itself.
	stalled bool
	// message names the Workspace's own reason and message.
	message string
}

// troubleOf returns the trouble of the Workspace; the zero value when there is none, when it is merely on its way, or when what
// the status says is about an earlier specification.
func troubleOf(workspace *autov1alpha1.Workspace) trouble {
	if workspace == nil || !workspace.DeletionTimestamp.IsZero() {
		return trouble{}
	}
	ready := conditions.Get(workspace, autov1alpha1.WorkspaceReady)
	stalled := conditions.IsStalled(workspace)
	failing := conditions.GetReason(workspace, autov1alpha1.WorkspaceReconciling) == meta.ProgressingWithRetryReason
	if ready == nil || ready.Status == metav1.ConditionTrue || ready.ObservedGeneration != workspace.Generation || !stalled && !failing {
		return trouble{}
	}
	t := trouble{
		reason:  pulumiv1.WorkspaceNotReadyReason,
		stalled: stalled,
		message: troublePrefix(workspace.Name, ready.Reason) + ready.Message,
	}
	switch {
	case stalled && ready.Reason == autov1alpha1.IncompatibleConfigurationReason:
		t.reason = pulumiv1.PulumiVersionTooLowReason
	case stalled:
		t.reason = pulumiv1.WorkspaceFailedReason
	}
	return t
}

func inTrouble(workspace *autov1alpha1.Workspace) bool {
	return troubleOf(workspace) != trouble{}
}

func troublePrefix(workspace, reason string) string {
	return fmt.Sprintf("workspace %q is not ready (%s): ", workspace, reason)
}

// prefix is the part of the message that names the Workspace's reason: what follows may differ from one look to the next.
func (t trouble) prefix() string {
	head, _, _ := strings.Cut(t.message, "): ")
	return head + "): "
}

// showTrouble shows the trouble of the Workspace that an update needs. It uses up no attempt, and goes with its cause: the
// watch on Workspaces wakes the Stack. The event is recorded once for each reason.
func (r *Reconciler) showTrouble(stack *pulumiv1.Stack, t trouble) outcome {
	known := conditions.GetReason(stack, meta.ReadyCondition) == t.reason &&
		strings.HasPrefix(conditions.GetMessage(stack, meta.ReadyCondition), t.prefix())
	message := t.message
	if !stack.DeletionTimestamp.IsZero() {
		message = fmt.Sprintf("%s; the resources are destroyed when it is, unless the annotation %s=true leaves them", message, pulumiv1.OrphanAnnotation)
	}
	if t.stalled {
		markStalled(stack, t.reason, message)
	} else {
		markWaiting(stack, t.reason, message)
	}
	if known {
		return outcome{}
	}
	return outcome{then: func(context.Context) error {
		r.Event(stack, corev1.EventTypeWarning, t.reason, message)
		return nil
	}}
}

// workspaceChanged passes the end of a Workspace, and what its Stack shows of it.
var workspaceChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*autov1alpha1.Workspace)
		after, same := e.ObjectNew.(*autov1alpha1.Workspace)
		return !ok || !same || troubleOf(before) != troubleOf(after) || !before.DeletionTimestamp.Equal(after.DeletionTimestamp)
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
