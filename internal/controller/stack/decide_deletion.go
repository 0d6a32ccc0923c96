package stack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// orphanHint is the advice in every message about a deletion that cannot go on.
	orphanHint = "set the annotation " + pulumiv1.OrphanAnnotation + "=true to delete the stack and keep its resources"
	// unownedUpdateInterval is the time to the next reconcile while an Update that the Stack did not create runs in its Workspace. Such an
	// Update does not wake the Stack.
	unownedUpdateInterval = 5 * time.Second
	// maxShownDependents is how many dependents a message names.
	maxShownDependents = 5
)

// decideOnDeletion returns actionRelease, which removes the finalizer, only with proof that no resource is left behind that should have been destroyed. It is not reached
// while an Update of the Stack exists: see decide.
func decideOnDeletion(o observation) decision {
	proof := nothingToDestroy(o.stack)
	switch {
	case proof != "" && o.unownedUpdate != "":
		return decision{action: actionWait, wake: byTime, reason: pulumiv1.WorkspaceInUseReason, after: unownedUpdateInterval,
			message: fmt.Sprintf("%s; the stack and its workspace are deleted when the update %q, which this stack did not create, "+
				"has ended: wait, or delete that update to cancel it", proof, o.unownedUpdate)}
	case proof != "" && leavesStacks(o.stack):
		return decision{action: actionStall, wake: byEdit, reason: pulumiv1.PulumiStacksLeftReason, message: cannotLeave(o.stack)}
	case proof != "":
		return decision{action: actionRelease, wake: byNothing, message: proof}
	case o.stack.Spec.Suspend:
		return decision{action: actionStall, wake: byEdit, reason: pulumiv1.SuspendedReason,
			message: "the stack was deleted while it is suspended, so its resources are not destroyed: " +
				"set spec.suspend to false to destroy them, or " + orphanHint}
	case len(o.dependents) > 0:
		return decision{action: actionWait, wake: byDependents, reason: pulumiv1.DependentsExistReason, after: o.waitInterval,
			message: describeDependents(o.dependents) + ", or " + orphanHint}
	case isDeletedInForeground(o.stack):
		return decision{action: actionWait, wake: byEdit, after: o.waitInterval,
			message: "the stack was deleted in the foreground: Kubernetes deletes its workspace and updates first, and the resources are " +
				"destroyed after that; to keep them, " + orphanHint}
	}
	due, fresh := destroyDue(o)
	if left := untilDue(o.stack, due, o.now); left > 0 {
		d := decideToRetry(o, left)
		d.message += "; " + orphanHint
		return d
	}
	if problem := blockedDestroy(o); problem != nil {
		return *problem
	}
	// It is of all resources: desiredUpdate drops what the spec or the template selects.
	d := decision{action: actionUpdate, wake: byUpdate, kind: autov1alpha1.UpdateTypeDestroy, fresh: fresh,
		message: "Stack marked for deletion", cause: pulumiv1.PlanForChange}
	if o.content.problem != nil && destroyableFromState(o.stack) {
		d.withoutSource = true
		return decideOnWindows(o, decideOnApproval(o, d))
	}
	if pending := awaitContent(o); pending != nil {
		if pending.action != actionFetch {
			pending.message = cannotDestroy(o.stack, pending.message)
		}
		return *pending
	}
	return decideOnWindows(o, decideOnApproval(o, d))
}

// nothingToDestroy returns the proof that permits to remove the finalizer; empty when resources may have to be destroyed.
func nothingToDestroy(stack *pulumiv1.Stack) string {
	last := stack.Status.LastUpdate
	switch {
	case stack.Annotations[pulumiv1.OrphanAnnotation] == "true":
		return "the resources are left as the annotation asks"
	case !stack.Spec.DestroyOnFinalize:
		return "the spec does not ask to destroy the resources"
	case !stack.Status.Deployed && !isLeft(stack) && (last == nil || last.Type == autov1alpha1.UpdateTypePreview || neverRan(stack)):
		return "nothing was ever deployed"
	case isLeft(stack):
	case wasDestroyed(last):
		return "the resources were destroyed"
	}
	return ""
}

// neverRan reports whether a Stack that has deployed nothing, as its status says, had an update: then that failed before it ran Pulumi.
func neverRan(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return stack.Status.CurrentUpdate == nil && last.Type == autov1alpha1.UpdateTypeUp && last.State == pulumiv1.StackUpdateFailed && last.LastSuccessfulCommit == ""
}

// isDeletedInForeground reports whether the garbage collector deletes everything that the Stack owns, as after "kubectl delete
// --cascade=foreground". It would delete an Update that destroys the resources, too.
func isDeletedInForeground(stack *pulumiv1.Stack) bool {
	return controllerutil.ContainsFinalizer(stack, metav1.FinalizerDeleteDependents)
}

func wasDestroyed(last *pulumiv1.StackUpdateStatus) bool {
	return last != nil && last.Type == autov1alpha1.UpdateTypeDestroy && last.State == pulumiv1.StackUpdateSucceeded
}

// destroyDue returns when the next destroy may start; the zero time means now. fresh is true when the destroy is the first one or has other
// inputs than the last one.
func destroyDue(o observation) (due time.Time, fresh bool) {
	last := o.stack.Status.LastUpdate
	switch {
	case last == nil, last.Type != autov1alpha1.UpdateTypeDestroy, last.State != pulumiv1.StackUpdateFailed:
		return time.Time{}, true
	case newInputs(o, last.Inputs()) != "":
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
			message: fmt.Sprintf("cannot destroy: %s; fix the spec, or %s", o.specProblem, orphanHint)}
	case o.artifact != nil || o.sourceProblem == nil || destroyableFromState(o.stack):
		return nil
	}
	d := blockedBySource(o, o.sourceProblem)
	if o.sourceProblem.Pending {
		return d
	}
	// The source may never come back. Only a human can decide to leave the resources.
	d.after = o.waitInterval
	d.message = cannotDestroy(o.stack, d.message)
	return d
}

// cannotDestroy adds to a problem with the source what the user can do about it.
func cannotDestroy(stack *pulumiv1.Stack, problem string) string {
	if info := stack.Status.ProjectInfo; info != nil && !info.NeedsProgram && stack.Spec.RunProgram {
		return fmt.Sprintf("cannot destroy: %s; set spec.runProgram to false to destroy without the program, or %s", problem, orphanHint)
	}
	if info := stack.Status.ProjectInfo; info != nil && info.NeedsProgram {
		return fmt.Sprintf("cannot destroy: %s, and the program has the provider of some resources; %s", problem, orphanHint)
	}
	return fmt.Sprintf("cannot destroy: %s; %s", problem, orphanHint)
}

// destroyableFromState reports whether the resources can be destroyed without the program.
func destroyableFromState(stack *pulumiv1.Stack) bool {
	info := stack.Status.ProjectInfo
	return info != nil && !info.NeedsProgram && !stack.Spec.RunProgram
}

// describeDependents names some of the Stacks that have to be deleted first, and says what to do. Stacks that are not being deleted yet
// come first.
func describeDependents(list []dependent) string {
	list = slices.SortedFunc(slices.Values(list), func(a, b dependent) int {
		if a.deleting != b.deleting {
			return map[bool]int{false: -1, true: 1}[a.deleting]
		}
		return cmp.Compare(a.name.String(), b.name.String())
	})
	var names []string
	for _, item := range list[:min(len(list), maxShownDependents)] {
		name := item.name.String()
		if item.deleting {
			name += " (is being deleted)"
		}
		names = append(names, name)
	}
	if left := len(list) - maxShownDependents; left > 0 {
		names = append(names, fmt.Sprintf("%d more", left))
	}
	return fmt.Sprintf("the resources are destroyed when no other Stack depends on this one any longer: %s; delete these Stacks, "+
		"take this one out of their dependsOn, prerequisites and inputs, set spec.destroyAfterDependents to false", strings.Join(names, ", "))
}
