package inputs

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
)

// usersIndex is the field by which a cache finds the Stacks that have outputs of a Stack as inputs. Those of which it has only a part have the
// value inPart in their namespace, because it may lack some of their inputs.
const (
	usersIndex = "spec.inputs.stack"
	inPart     = "(in part)"
)

// AddIndex adds the index that AreUsed needs; it can be added only once.
func AddIndex(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &pulumiv1.Stack{}, usersIndex, func(object client.Object) (names []string) {
		for _, name := range autov1alpha1.StacksOf(object.GetNamespace(), object.(*pulumiv1.Stack).Spec.Inputs) {
			names = append(names, name.String())
		}
		if informercache.IsShortened(object) {
			names = append(names, inPart)
		}
		return names
	})
	if err != nil {
		return fmt.Errorf("index the Stacks by their inputs: %w", err)
	}
	return nil
}

// AreUsed reports whether a Stack in the cache has outputs of the Stack as inputs, and may, and whether one waits for an input.
func AreUsed(ctx context.Context, cache client.Reader, stack *pulumiv1.Stack, scope references.Scope) (used, awaited bool, err error) {
	var users pulumiv1.StackList
	name := client.ObjectKeyFromObject(stack)
	if err := cache.List(ctx, &users, client.MatchingFields{usersIndex: name.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return false, false, fmt.Errorf("list the stacks that have outputs of %s as inputs: %w", name, err)
	}
	for i := range users.Items {
		user := &users.Items[i]
		uses := Uses(user, stack, scope)
		used, awaited = used || uses, awaited || uses && Awaits(user)
	}
	return used, awaited, nil
}

// MayBeUsed reports whether a Stack in the cache has outputs of the Stack as inputs, or has inputs in the same namespace that the cache lacks because
// it keeps only a part of large Stacks.
func MayBeUsed(ctx context.Context, cache client.Reader, stack *pulumiv1.Stack, scope references.Scope) (bool, error) {
	used, _, err := AreUsed(ctx, cache, stack, scope)
	if err != nil || used {
		return used, err
	}
	var large pulumiv1.StackList
	options := []client.ListOption{client.InNamespace(stack.Namespace), client.MatchingFields{usersIndex: inPart}, client.UnsafeDisableDeepCopy}
	if err := cache.List(ctx, &large, options...); err != nil {
		return false, fmt.Errorf("list the large stacks in the namespace %s: %w", stack.Namespace, err)
	}
	return len(large.Items) > 0, nil
}

// Uses reports whether the user has outputs of the giver as inputs, and may.
func Uses(user, giver *pulumiv1.Stack, scope references.Scope) bool {
	name := client.ObjectKeyFromObject(giver)
	return scope.Reaches(user.Namespace, giver.Namespace) && slices.ContainsFunc(user.Spec.Inputs, func(input autov1alpha1.Input) bool {
		return input.Stack != nil && input.Stack.Of(user.Namespace) == name && Denied(giver, user.Namespace, input.Stack, false) == nil
	})
}

// Awaits reports whether an update of the Stack waits for an input.
func Awaits(stack *pulumiv1.Stack) bool {
	return conditions.GetReason(stack, meta.ReadyCondition) == pulumiv1.InputNotFoundReason
}
