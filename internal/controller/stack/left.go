package stack

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/steps"
)

// A Stack whose spec.stack, spec.backend or project is changed deploys another Pulumi stack. The resources of the one before stay, and no
// update of the Stack destroys them. The status keeps which these are.

const (
	// maxLeftStacks bounds the list in the status. Pulumi stacks beyond it are not recorded, but each in the list keeps a deleted Stack.
	maxLeftStacks = 50
	// maxShownLeft is how many of them a message names.
	maxShownLeft = 5
	// maxLeftText bounds each part of what the status keeps of a Pulumi stack, in bytes. Pulumi's names are shorter.
	maxLeftText = 256
)

// deployedStack returns what is deployed now, as the status says; its name is empty if nothing is.
func deployedStack(stack *pulumiv1.Stack) pulumiv1.LeftStack {
	return pulumiStack(stack.Status.DeployedStack, stack.Status.ProjectInfo, stack.Status.DeployedBackend)
}

// pulumiStack returns what identifies a Pulumi stack, with bounds on each part.
func pulumiStack(name string, project *autov1alpha1.ProjectInfo, backend string) pulumiv1.LeftStack {
	return pulumiv1.LeftStack{
		Name: plaintext.Cut(name, maxLeftText), Project: plaintext.Cut(ptr.Deref(project, autov1alpha1.ProjectInfo{}).Name, maxLeftText),
		Backend: withoutCredentials(backend),
	}
}

// recordDeployedStack records which Pulumi stack exists now, and which one is left if that was another one before. If an update got as far as a
// resource, the stack exists, even if the update failed. It has to be called before the project of the Update is recorded.
func recordDeployedStack(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	before, status, succeeded := deployedStack(stack), &stack.Status, !update.HasFailed()
	now := pulumiStack(update.Spec.StackName, update.Status.ProjectInfo, stack.Spec.Backend)
	switch {
	case update.ChangesNothing():
		return
	case update.Spec.Type == autov1alpha1.UpdateTypeDestroy:
		if !succeeded {
			return
		}
		status.DeployedStack, status.DeployedBackend = "", ""
	case succeeded || len(update.Status.ResourceChanges) > 0:
		status.DeployedStack, status.DeployedBackend = update.Spec.StackName, now.Backend
	default:
		return
	}
	isSame := func(left pulumiv1.LeftStack) bool { return sameStack(left, now) }
	if before.Name != "" && !isSame(before) && wasEmpty(update) && !slices.Contains(status.LeftStacks, before) && len(status.LeftStacks) < maxLeftStacks {
		status.LeftStacks = append(status.LeftStacks, before)
	}
	status.LeftStacks = slices.DeleteFunc(status.LeftStacks, isSame)
}

// wasEmpty reports whether the Pulumi stack had no resources before the Update. One that had some is the earlier one, under another name: somebody
// renamed it, or moved its state to another backend.
func wasEmpty(update *autov1alpha1.Update) bool {
	return !slices.ContainsFunc(steps.Counts(update.Status.ResourceChanges), func(count steps.Count) bool { return !count.New })
}

// sameStack reports whether both are the same Pulumi stack. What is not known of one counts as the same as in the other.
func sameStack(a, b pulumiv1.LeftStack) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return a.Name == b.Name && same(a.Project, b.Project) && same(a.Backend, b.Backend)
}

// withoutCredentials returns the URL of a backend without user, password and parameters; empty if it is not known where these are.
func withoutCredentials(backend string) string {
	parsed, err := url.Parse(backend)
	if err != nil || parsed.Opaque != "" || parsed.Scheme == "" {
		return ""
	}
	parsed.User, parsed.RawQuery, parsed.Fragment = nil, "", ""
	return plaintext.Cut(parsed.String(), maxLeftText)
}

// leavesStacks reports whether a Stack that is being deleted has left Pulumi stacks that somebody has to decide about.
func leavesStacks(stack *pulumiv1.Stack) bool {
	return stack.Spec.DestroyOnFinalize && stack.Annotations[pulumiv1.OrphanAnnotation] != "true" && len(stack.Status.LeftStacks) > 0
}

// isLeft reports whether spec.stack and spec.backend name a Pulumi stack that was left.
func isLeft(stack *pulumiv1.Stack) bool {
	named := pulumiStack(stack.Spec.Stack, nil, stack.Spec.Backend)
	return slices.ContainsFunc(stack.Status.LeftStacks, func(left pulumiv1.LeftStack) bool { return sameStack(left, named) })
}

// describeLeft names some of the Pulumi stacks that were left.
func describeLeft(list []pulumiv1.LeftStack) string {
	var names []string
	for _, left := range list[:min(len(list), maxShownLeft)] {
		name := fmt.Sprintf("%q", left.Name)
		if left.Project != "" {
			name += " of project " + left.Project
		}
		if left.Backend != "" {
			name += " in " + left.Backend
		}
		names = append(names, name)
	}
	if more := len(list) - maxShownLeft; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// cannotLeave says what to do about the Pulumi stacks that a deletion would leave.
func cannotLeave(stack *pulumiv1.Stack) string {
	return fmt.Sprintf("nobody destroys the resources of these Pulumi stacks, which this Stack deployed before its spec.stack, spec.backend or project "+
		"was changed: %s. To destroy one, set spec.stack and spec.backend to it; if another Stack manages them or they are to stay, %s",
		describeLeft(stack.Status.LeftStacks), orphanHint)
}

// announceLeft records an event when the Update is the first one of a specification that names another Pulumi stack than the one that is
// deployed.
func (r *Reconciler) announceLeft(stack *pulumiv1.Stack, d decision) {
	before := deployedStack(stack)
	now := pulumiStack(stack.Spec.Stack, nil, stack.Spec.Backend)
	if !d.fresh || d.kind == autov1alpha1.UpdateTypePreview || before.Name == "" || sameStack(before, now) {
		return
	}
	r.Eventf(stack, corev1.EventTypeWarning, eventStackLeft, "the resources of the Pulumi stack %s stay: the spec names another one now, and no "+
		"update of this Stack destroys them. To go back, set spec.stack and spec.backend to what they were", describeLeft([]pulumiv1.LeftStack{before}))
}
