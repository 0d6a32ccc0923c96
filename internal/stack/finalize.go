package stack

import (
	"fmt"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// orphanHint is the way out of every deletion that cannot go on.
const orphanHint = "set the annotation " + pulumiv1.OrphanAnnotation + "=true to leave the resources"

// busyInterval is when to look again at an Update of somebody else, which does not wake the Stack.
const busyInterval = 5 * time.Second

// decideOnDeletion lets the finalizer go only with proof that nothing is left behind that should have been destroyed.
func decideOnDeletion(o observation) decision {
	proof := nothingToDestroy(o.stack)
	if proof != "" && o.busy != "" {
		return decision{action: actionWait, wake: byTime, reason: pulumiv1.WorkspaceInUseReason, after: busyInterval,
			message: fmt.Sprintf("%s; the stack and its workspace go when the update %q, which somebody else runs in the workspace, has ended: "+
				"wait, or delete that update to cancel it", proof, o.busy)}
	}
	if proof != "" {
		return decision{action: actionRelease, wake: byNothing, message: proof}
	}
	if o.stack.Spec.Suspend {
		return decision{action: actionStall, wake: byEdit, reason: pulumiv1.SuspendedReason,
			message: "the stack was deleted while it is suspended, so its resources are not destroyed: set spec.suspend to false to destroy them, or " + orphanHint}
	}
	if len(o.dependents) > 0 {
		return decision{action: actionWait, wake: byDependents, reason: pulumiv1.DependentsExistReason, after: o.waitInterval,
			message: describeDependents(o.dependents) + ", or " + orphanHint}
	}
	due, fresh := destroyDue(o)
	if left := untilDue(o.stack, due, o.now); left > 0 {
		last := o.stack.Status.LastUpdate
		return decision{action: actionRetry, wake: byTime, reason: retryReason(last), message: describeRetry(last, left) + "; " + orphanHint, after: lookAgain(last, o.now, left)}
	}
	if problem := blockedDestroy(o); problem != nil {
		return *problem
	}
	return decision{action: actionUpdate, wake: byUpdate, kind: autov1alpha1.UpdateTypeDestroy, message: "Stack marked for deletion", fresh: fresh}
}

// inTerminatingNamespace says what there is to do when nothing can be created any more to destroy the resources. What is missing there,
// Secrets above all, does not come back either.
func inTerminatingNamespace(stack *pulumiv1.Stack) string {
	return fmt.Sprintf("the namespace is being deleted, and nothing can be created in it any more, so the resources cannot be destroyed from here: "+
		"to destroy them, create the same Stack in another namespace, where it takes over the stack %q, and delete it there; then here, or to "+
		"keep the resources, %s", stack.Spec.Stack, orphanHint)
}

// destroyDue is when the next destroy may start; zero is now. It is fresh when it is the first one, or other than the last one.
func destroyDue(o observation) (due time.Time, fresh bool) {
	last := o.stack.Status.LastUpdate
	switch {
	case last == nil, last.Type != autov1alpha1.UpdateTypeDestroy, last.State != pulumiv1.StackUpdateFailed:
		return time.Time{}, true
	case last.Generation != o.stack.Generation, unhandledRequest(o.stack) != "", referencesChanged(o) != "":
		return time.Time{}, true
	case o.artifact != nil && last.LastAttemptedCommit != "" && last.LastAttemptedCommit != commitOf(o.artifact):
		return time.Time{}, true
	}
	return retryDue(o.stack, o.jitter), false
}

// blockedDestroy returns what keeps the resources from being destroyed, and how to go on, or nil.
func blockedDestroy(o observation) *decision {
	switch {
	case o.specProblem != nil:
		return &decision{action: actionStall, wake: byEdit, reason: pulumiv1.SpecInvalidReason,
			message: fmt.Sprintf("cannot destroy: %s; mend the spec, or %s", o.specProblem, orphanHint)}
	case o.artifact != nil || o.sourceProblem == nil || destroyableFromState(o.stack):
		return nil
	}
	d := blockedBySource(o, o.sourceProblem)
	if o.sourceProblem.Pending {
		return d
	}
	// The source may be gone for good; only a human can say that the resources may stay.
	d.after = o.waitInterval
	d.message = cannotDestroy(o.stack, d.message)
	return d
}

// cannotDestroy adds to a problem with the source what there is to do about it.
func cannotDestroy(stack *pulumiv1.Stack, problem string) string {
	if stack.Status.ProjectInfo != nil && stack.Spec.RunProgram {
		return fmt.Sprintf("cannot destroy: %s; set spec.runProgram to false to destroy without the program, or %s", problem, orphanHint)
	}
	return fmt.Sprintf("cannot destroy: %s; %s", problem, orphanHint)
}

// destroyableFromState tells whether the resources can be destroyed without the program.
func destroyableFromState(stack *pulumiv1.Stack) bool {
	return stack.Status.ProjectInfo != nil && !stack.Spec.RunProgram
}

// whileDeleted adds to the progress of an Update what it means for a Stack that is deleted.
func whileDeleted(stack *pulumiv1.Stack, update *autov1alpha1.Update, message string) string {
	switch {
	case stack.DeletionTimestamp.IsZero():
	case nothingToDestroy(stack) != "":
		return message + "; the stack goes when the update has ended"
	case update.Spec.Type != autov1alpha1.UpdateTypeDestroy:
		return message + "; the resources are destroyed when the update has ended"
	}
	return message
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
