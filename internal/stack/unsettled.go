package stack

import (
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// An operation that is cut off can leave pending operations in the state, and an agent that was replaced meanwhile knows nothing of it: the
// lock, which would tell, may have been removed by hand, and Pulumi Cloud lets its own expire. So the Stack remembers it until an
// operation succeeds.

// leavesUnsettled tells whether pending operations may be in the state after the Update.
func leavesUnsettled(update *autov1alpha1.Update, previous *pulumiv1.StackUpdateStatus) bool {
	switch {
	case update.Spec.Type == autov1alpha1.UpdateTypePreview:
		return previous.Unsettled
	case !update.HasFailed():
		return false
	}
	return cutOff(update) || previous.Unsettled
}

// cutOff tells whether the Update ended in the middle.
func cutOff(update *autov1alpha1.Update) bool {
	switch conditions.GetReason(update, autov1alpha1.UpdateFailed) {
	case autov1alpha1.InterruptedReason, autov1alpha1.TimeoutReason:
		return update.HasFailed()
	case autov1alpha1.CanceledReason:
		return update.HasFailed() && update.Status.StartTime != nil
	}
	return false
}

// rememberUnsettled remembers an operation that may have been cut off and whose result is not in the status.
func rememberUnsettled(stack *pulumiv1.Stack) {
	if last := stack.Status.LastUpdate; last != nil {
		last.Unsettled = true
	}
}

// unsettled tells whether pending operations may be in the state now. An Update that somebody removed while it ran has no result.
func unsettled(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return last != nil && last.Unsettled || last == nil && stack.Status.Deployed
}
