package source

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Set resolves the sources of Stacks, of whatever kind they are. Where a Stack has several, git counts, else Flux, else the
// Program. One that is nil refuses its kind.
type Set struct {
	Flux     *Flux
	Git      *GitSubscription
	Programs *Programs
}

// Resolve returns the artifact that the stack's source offers now, and nil for a stack that has none. A *Problem says why the
// source offers none; any other error is a failure to ask.
func (s *Set) Resolve(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	if !stack.HasGitSource() {
		s.Forget(client.ObjectKeyFromObject(stack))
	}
	switch {
	case stack.HasGitSource():
		return s.resolveGit(ctx, stack, (*GitSubscription).Resolve)
	case stack.Spec.FluxSource != nil && s.Flux != nil:
		return s.Flux.Resolve(ctx, stack)
	case stack.Spec.ProgramRef != nil && s.Programs != nil:
		return s.Programs.Resolve(ctx, stack)
	}
	return nil, s.refuse(stack)
}

// Refresh is Resolve with what the API server says instead of a cache. A git server is asked soon, but not waited for.
func (s *Set) Refresh(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	switch {
	case stack.HasGitSource():
		return s.resolveGit(ctx, stack, (*GitSubscription).Refresh)
	case stack.Spec.FluxSource != nil && s.Flux != nil:
		return s.Flux.Refresh(ctx, stack)
	case stack.Spec.ProgramRef != nil && s.Programs != nil:
		return s.Programs.Refresh(ctx, stack)
	}
	return nil, s.refuse(stack)
}

// refuse returns a problem when the stack has a source all the same.
func (*Set) refuse(stack *pulumiv1.Stack) error {
	switch {
	case stack.Spec.FluxSource != nil:
		return invalidSource("spec.fluxSource: this controller does not use Flux sources")
	case stack.Spec.ProgramRef != nil:
		return invalidSource("spec.programRef: this controller does not use Programs")
	}
	return nil
}

// Forget is told that a stack does not need its source any more, because it is deleted or suspended.
func (s *Set) Forget(stack types.NamespacedName) {
	if s.Git != nil {
		s.Git.Forget(stack)
	}
}

func (s *Set) resolveGit(
	ctx context.Context, stack *pulumiv1.Stack, resolve func(*GitSubscription, context.Context, GitQuery) (*Artifact, error),
) (*Artifact, error) {
	if s.Git == nil {
		return nil, invalidSource("spec.projectRepo: this controller does not use git repositories")
	}
	waiter := client.ObjectKeyFromObject(stack)
	from, err := GitSourceOf(stack)
	if err != nil {
		s.Forget(waiter)
		return nil, err
	}
	return resolve(s.Git, ctx, GitQuery{
		Waiter:   waiter,
		Source:   from,
		Interval: stack.GetResyncInterval(),
		Token:    requestToken(stack),
	})
}

// requestToken is what the annotations ask for that the status does not say is handled; empty when that is nothing.
func requestToken(stack *pulumiv1.Stack) string {
	var tokens []string
	if token, _ := meta.ReconcileAnnotationValue(stack.Annotations); token != "" && token != stack.Status.LastHandledReconcileAt {
		tokens = append(tokens, token)
	}
	if token := stack.Annotations[pulumiv1.ReconcileRequestAnnotation]; token != "" && token != stack.Status.ObservedReconcileRequest {
		tokens = append(tokens, token)
	}
	return strings.Join(tokens, "\n")
}
