package stack

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// maxWalk is how many Stacks are looked at in search of a cycle.
	maxWalk = 10_000
	// maxShownPath is how many Stacks of a cycle are named.
	maxShownPath = 20
)

// findCycle returns the shortest way from the Stack through its dependencies back to itself, both ends included; nil when there is none.
func (r *Reconciler) findCycle(ctx context.Context, stack *pulumiv1.Stack) ([]types.NamespacedName, error) {
	self := client.ObjectKeyFromObject(stack)
	var last *types.NamespacedName
	cameFrom, err := r.walk(ctx, stack, dependenciesOf, func(from, to types.NamespacedName) (stop bool) {
		if to == self {
			last = &from
		}
		return last != nil
	})
	if err != nil || last == nil {
		return nil, err
	}
	return pathTo(*last, self, cameFrom), nil
}

// walk goes from the Stack through its dependencies, as list returns them, nearest first, until visit says stop. It returns for each Stack
// that it came to the one that it came from.
func (r *Reconciler) walk(
	ctx context.Context, stack *pulumiv1.Stack, list func(*pulumiv1.Stack) []dependency, visit func(from, to types.NamespacedName) (stop bool),
) (map[types.NamespacedName]types.NamespacedName, error) {
	cameFrom := map[types.NamespacedName]types.NamespacedName{}
	next, queue := stack, []types.NamespacedName{}
	for here := client.ObjectKeyFromObject(stack); ; {
		for _, item := range r.followed(next, list) {
			if visit(here, item.name) {
				return cameFrom, nil
			}
			if _, known := cameFrom[item.name]; !known && len(cameFrom) < maxWalk {
				cameFrom[item.name] = here
				queue = append(queue, item.name)
			}
		}
		if len(queue) == 0 {
			return cameFrom, nil
		}
		here, queue = queue[0], queue[1:]
		var err error
		if next, err = r.getStack(ctx, here); err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
}

// followed returns the dependencies of a Stack that count: those that are not allowed keep it waiting by themselves.
func (r *Reconciler) followed(stack *pulumiv1.Stack, list func(*pulumiv1.Stack) []dependency) []dependency {
	if stack == nil {
		return nil
	}
	return slices.DeleteFunc(list(stack), func(item dependency) bool {
		return item.name.Namespace != stack.Namespace && !r.AllowCrossNamespaceRefs
	})
}

func pathTo(last, self types.NamespacedName, cameFrom map[types.NamespacedName]types.NamespacedName) []types.NamespacedName {
	path := []types.NamespacedName{self}
	for here := last; here != self; here = cameFrom[here] {
		path = append(path, here)
	}
	path = append(path, self)
	slices.Reverse(path)
	return path
}

func cycleProblem(cycle []types.NamespacedName) *dependencyProblem {
	names := make([]string, len(cycle))
	for i := range cycle {
		names[i] = cycle[i].String()
	}
	if left := len(names) - maxShownPath; left > 0 {
		names = append(names[:maxShownPath-1], fmt.Sprintf("(%d more)", left), names[len(names)-1])
	}
	return &dependencyProblem{reason: pulumiv1.DependencyCycleReason, permanent: true,
		message: "the stacks wait for each other, remove one of these dependencies: " + strings.Join(names, " → ")}
}

// dependencyView is what those who depend on a Stack see of it.
type dependencyView struct {
	problem, update              string
	inCycle, suspended, deleting bool
	dependencies                 string
}

func viewOf(stack *pulumiv1.Stack) dependencyView {
	view := dependencyView{
		problem:   notReady(stack),
		inCycle:   conditions.GetReason(stack, meta.StalledCondition) == pulumiv1.DependencyCycleReason,
		suspended: stack.Spec.Suspend,
		deleting:  !stack.DeletionTimestamp.IsZero(),
	}
	if last := stack.Status.LastUpdate; last != nil {
		view.update = last.Name
	}
	for _, item := range dependenciesOf(stack) {
		view.dependencies += item.name.String() + " "
	}
	return view
}

// dependencyChanged passes what dependants wait for. That a Stack is in a cycle, or is not any more, makes its way along the cycle in
// this manner, and so does an edit that closes or breaks one.
var dependencyChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*pulumiv1.Stack)
		after, same := e.ObjectNew.(*pulumiv1.Stack)
		return ok && same && viewOf(before) != viewOf(after)
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
