package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
)

// requireAnswers says for every object what the operator does differently with it, whatever controller wrote its status. It fails if the
// operator would do something that an object forbids, and Accept does not name the object.
func (h *handBack) requireAnswers(ctx context.Context) error {
	open := map[types.UID]bool{}
	for _, kind := range []struct {
		definition string
		list       client.ObjectList
	}{
		{newfields.Stacks, &pulumiv1.StackList{}},
		{newfields.Programs, &pulumiv1.ProgramList{}},
		{newfields.Workspaces, &autov1alpha1.WorkspaceList{}},
		{newfields.Updates, &autov1alpha1.UpdateList{}},
	} {
		err := h.each(ctx, kind.list, func(_ context.Context, object client.Object) error {
			if !isLeftToTheOperator(object) {
				return nil
			}
			asks, err := h.sayDifferences(object, kind.definition)
			if asks {
				open[object.GetUID()] = true
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	switch {
	case h.failed > 0:
		return fmt.Errorf("%d objects could not be checked; nothing was changed", h.failed)
	case len(open) == 0:
		return nil
	}
	err := fmt.Errorf("%d objects forbid what the operator will do with them: accept it with the flags --accept that are named above, "+
		"or take the objects away from the operator; nothing was changed", len(open))
	if h.DryRun {
		h.fail(err) // the rest of the dry run is of use, too
		return nil
	}
	return err
}

// isLeftToTheOperator reports whether the operator will have the object and act on its spec.
func isLeftToTheOperator(object client.Object) bool {
	switch object := object.(type) {
	case *autov1alpha1.Workspace:
		return !isOfStack(object)
	case *autov1alpha1.Update:
		return !object.IsComplete() && !isOfStack(object) && !needsPlan(object)
	}
	return true
}

// sayDifferences prints what the operator does differently with the object. It reports whether one of these things is forbidden, and not
// accepted.
func (h *handBack) sayDifferences(object client.Object, definition string) (asks bool, err error) {
	content, err := json.Marshal(object)
	if err != nil {
		return false, fmt.Errorf("look for fields that the operator does not know: %w", err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(content, &fields); err != nil {
		return false, fmt.Errorf("look for fields that the operator does not know: %w", err)
	}
	var forbidden []string
	for _, field := range newfields.Of(definition) {
		text := fmt.Sprintf("the operator does not know %s, and %s", field.Path, field.Instead)
		switch {
		case field.Instead == "" || !field.IsSetIn(fields):
		case field.Forbids:
			forbidden = append(forbidden, text)
		default:
			h.say(object, "note: %s", text)
		}
	}
	if stack, isStack := object.(*pulumiv1.Stack); isStack {
		forbidden = append(forbidden, forbiddenForStack(stack)...)
		for _, left := range stack.Status.LeftStacks {
			h.say(stack, "note: the operator does not know that this Stack deployed the Pulumi stack %q before, and leaves its resources", left.Name)
		}
		if source := stack.Spec.FluxSource; source != nil && source.SourceRef.Namespace != "" && source.SourceRef.Namespace != stack.Namespace {
			h.say(stack, "note: the operator looks for the source in the namespace of the Stack only")
		}
	}
	if len(forbidden) == 0 {
		return false, nil
	}
	answer := strings.ReplaceAll(h.describe(object), " ", "/")
	accepted := slices.ContainsFunc(h.Accept, func(name string) bool { return strings.EqualFold(name, answer) })
	for _, text := range forbidden {
		if accepted {
			h.say(object, "note: %s", text)
		} else {
			h.say(object, "stop: %s; to accept this: --accept=%s", text, answer)
		}
	}
	return !accepted, nil
}

// forbiddenForStack returns what the operator does although an annotation or the status of the Stack forbids it.
func forbiddenForStack(stack *pulumiv1.Stack) (forbidden []string) {
	if stack.Spec.DestroyOnFinalize && stack.Annotations[pulumiv1.OrphanAnnotation] == "true" {
		forbidden = append(forbidden, "the operator does not know the annotation "+pulumiv1.OrphanAnnotation+
			", and destroys the resources when this Stack is deleted")
	}
	if last := stack.Status.LastUpdate; last != nil && stack.DeletionTimestamp.IsZero() && last.Reason == autov1alpha1.StackLostReason {
		forbidden = append(forbidden, "its backend does not have the stack, and the operator creates all its resources again")
	}
	return forbidden
}
