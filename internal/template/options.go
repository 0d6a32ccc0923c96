package template

import (
	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Options returns what the spec of a Stack asks for in each of its updates, without spec.updateTemplate.
func Options(stack *pulumiv1.Stack) autov1alpha1.UpdateSpec {
	set := func(value bool) *bool {
		if !value {
			return nil
		}
		return &value
	}
	spec := &stack.Spec
	return autov1alpha1.UpdateSpec{
		WorkspaceName: stack.Name, StackName: spec.Stack, Timeout: spec.Timeout,
		Refresh: set(spec.Refresh), ExpectNoRefreshChanges: set(spec.ExpectNoRefreshChanges),
		Target: spec.Targets, TargetDependents: set(spec.TargetDependents),
	}
}
