package stack

import (
	"fmt"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// decideOnDeletion lets the finalizer go only with proof that nothing is left behind that should have been destroyed.
func decideOnDeletion(o observation) decision {
	if proof := nothingToDestroy(o.stack); proof != "" {
		return decision{action: actionRelease, message: proof}
	}
	last := o.stack.Status.LastUpdate
	if last != nil && last.Type == autov1alpha1.UpdateTypeDestroy && last.State == pulumiv1.StackUpdateFailed {
		if left := retryDue(o.stack, o.jitter).Sub(o.now); left > 0 && unhandledRequest(o.stack) == "" {
			return decision{action: actionRetry, reason: retryReason(last), message: describeRetry(last, left), after: left}
		}
	}
	if o.specProblem != nil {
		return decision{action: actionStall, reason: pulumiv1.SpecInvalidReason,
			message: fmt.Sprintf("cannot destroy: %s; mend the spec, or set the annotation %s=true to leave the resources", o.specProblem, pulumiv1.OrphanAnnotation)}
	}
	if o.artifact == nil && o.sourceProblem != nil && o.stack.Status.ProjectInfo == nil {
		d := blockedBySource(o, o.sourceProblem)
		if o.sourceProblem.Pending {
			return *d
		}
		// The source may be gone for good; only a human can say that the resources may stay.
		d.after = o.waitInterval
		d.message = fmt.Sprintf("cannot destroy: %s; set the annotation %s=true to leave the resources", d.message, pulumiv1.OrphanAnnotation)
		return *d
	}
	return decision{action: actionUpdate, kind: autov1alpha1.UpdateTypeDestroy, message: "Stack marked for deletion",
		fresh: last == nil || last.Type != autov1alpha1.UpdateTypeDestroy}
}

// nothingToDestroy returns why the finalizer may go, or the empty string.
func nothingToDestroy(stack *pulumiv1.Stack) string {
	last := stack.Status.LastUpdate
	switch {
	case stack.Annotations[pulumiv1.OrphanAnnotation] == "true":
		return "the resources are left as the annotation asks"
	case !stack.Spec.DestroyOnFinalize:
		return "the spec does not ask to destroy the resources"
	case !stack.Status.Deployed && (last == nil || last.Type == autov1alpha1.UpdateTypePreview):
		return "nothing was ever deployed"
	case last != nil && last.Type == autov1alpha1.UpdateTypeDestroy && last.State == pulumiv1.StackUpdateSucceeded:
		return "the resources were destroyed"
	}
	return ""
}
