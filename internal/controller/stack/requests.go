package stack

import (
	"strings"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A request is an annotation by which somebody asks for an update although nothing changed. Its new value wakes the Stack (requestChanged
// and ReconcileRequestedPredicate in setup.go), newInputs takes it for a reason to update, and the status records that it was handled.

// reconcileRequest is the value of the Pulumi annotation that asks for an update.
func reconcileRequest(stack *pulumiv1.Stack) string {
	return stack.Annotations[pulumiv1.ReconcileRequestAnnotation]
}

// requestedAt is the value of the Flux annotation that asks for an update.
func requestedAt(stack *pulumiv1.Stack) string {
	token, _ := meta.ReconcileAnnotationValue(stack.Annotations)
	return token
}

// lastUpdateRequest is the value of the annotation that asks for an update in tutorials.
func lastUpdateRequest(stack *pulumiv1.Stack) string {
	return stack.Annotations[pulumiv1.LastUpdateAnnotation]
}

// unhandledRequest returns the request, in any of the annotations, that no update was made for yet.
func unhandledRequest(stack *pulumiv1.Stack) string {
	status := &stack.Status
	for _, request := range [][2]string{
		{reconcileRequest(stack), status.ObservedReconcileRequest},
		{requestedAt(stack), status.LastHandledReconcileAt},
		{lastUpdateRequest(stack), status.ObservedLastUpdateRequest},
	} {
		if request[0] != "" && request[0] != request[1] {
			return request[0]
		}
	}
	return ""
}

// requestOfDependents is the value of the Pulumi annotation by which Stacks that depend on this one ask for another update than its last one.
func requestOfDependents(stack *pulumiv1.Stack) string {
	return "after-" + stack.Status.LastUpdate.Name
}

// somebodyAsks reports whether the Stack itself asks for an update that was not made: it was edited, or somebody requested one, and not only
// the Stacks that depend on it. A plan that was made for a request is not carried out yet.
func somebodyAsks(o observation, d decision) bool {
	last := o.stack.Status.LastUpdate
	if last == nil || last.Generation != o.stack.Generation || !o.stack.DeletionTimestamp.IsZero() {
		return true
	}
	if request := unhandledRequest(o.stack); request != "" && request != requestOfDependents(o.stack) {
		return true
	}
	plan := o.stack.Status.Plan
	return d.applies && plan != nil && (strings.HasPrefix(plan.Trigger, syncRequestTrigger) || strings.HasPrefix(plan.Trigger, forcedRequestTrigger))
}

// handleRequests records that the requests in the annotations were seen.
func handleRequests(stack *pulumiv1.Stack) {
	handleFluxRequest(stack)
	stack.Status.ObservedReconcileRequest = reconcileRequest(stack)
	if request := lastUpdateRequest(stack); request != "" {
		stack.Status.ObservedLastUpdateRequest = request
	}
}

// forceRequested reports whether Flux's annotations ask for a forced update that was not made yet: a request to force, together with a
// plain one of the same value.
func forceRequested(stack *pulumiv1.Stack) bool {
	handled := stack.Status.LastHandledForceAt
	return meta.HandleAnnotationRequest(stack, meta.ForceRequestAnnotation, &handled)
}

func handleFluxRequest(stack *pulumiv1.Stack) {
	// A force request counts as handled even if it came without a plain request, as in Flux. What it asked for is in the Update.
	meta.ShouldHandleForceRequest(stack)
	if token := requestedAt(stack); token != "" {
		stack.Status.LastHandledReconcileAt = token
	}
}

// askAgain records that the requests which the current update was made for are not handled: it is not going to run. Every Update has the
// value of the Pulumi annotation, so that of an earlier update asks for nothing.
func askAgain(stack *pulumiv1.Stack) {
	status, current := &stack.Status, stack.Status.CurrentUpdate
	if last := status.LastUpdate; current.ReconcileRequest != "" && current.ReconcileRequest == status.ObservedReconcileRequest &&
		(last == nil || last.ReconcileRequest != current.ReconcileRequest) {
		status.ObservedReconcileRequest = ""
	}
	if current.RequestedAt != "" && current.RequestedAt == status.LastHandledReconcileAt {
		status.LastHandledReconcileAt = ""
	}
	if current.LastUpdateRequest != "" && current.LastUpdateRequest == status.ObservedLastUpdateRequest {
		status.ObservedLastUpdateRequest = ""
	}
	if current.RequestedAt != "" && status.LastHandledForceAt == current.RequestedAt {
		status.LastHandledForceAt = ""
	}
}
