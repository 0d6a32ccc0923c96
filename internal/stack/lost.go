package stack

import (
	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A Pulumi stack is lost when it was deployed before and the backend does not have it any more: a volume that is not mounted, another
// bucket, a state that somebody removed. To create it anew would create every resource a second time, and to destroy it would prove
// nothing, so neither is done unless somebody asks for it.

// mustExist tells whether an operation may rely on the stack being there.
func mustExist(stack *pulumiv1.Stack) bool {
	return stack.Status.DeployedStack != "" && stack.Status.DeployedStack == stack.Spec.Stack && !mayCreateMissing(stack)
}

func mayCreateMissing(stack *pulumiv1.Stack) bool {
	return stack.Annotations[pulumiv1.CreateMissingStackAnnotation] == "true"
}

// startsOver tells whether somebody allowed to create the stack after the last update found that it is lost.
func startsOver(stack *pulumiv1.Stack) bool {
	return wasLost(stack.Status.LastUpdate) && !mustExist(stack)
}

// wasLost tells whether the last update found that the stack is lost.
func wasLost(last *pulumiv1.StackUpdateStatus) bool {
	return last != nil && last.Reason == autov1alpha1.StackLostReason
}

// recordDeployedStack remembers which stack there is now. One that had its resources looked at exists, whatever came of it.
func recordDeployedStack(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	succeeded := !update.HasFailed()
	switch {
	case update.Spec.Type == autov1alpha1.UpdateTypePreview:
	case update.Spec.Type == autov1alpha1.UpdateTypeDestroy:
		if succeeded {
			stack.Status.DeployedStack = ""
		}
	case succeeded || len(update.Status.ResourceChanges) > 0:
		stack.Status.DeployedStack = update.Spec.StackName
	}
}
