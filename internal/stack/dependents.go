package stack

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// maxShownDependents is how many of the Stacks that have to go first are named.
	maxShownDependents = 5
	// pageSize is how many Stacks one answer of the API server has at most.
	pageSize = 500
)

// dependent is a Stack that names another one as its prerequisite or dependency.
type dependent struct {
	name     types.NamespacedName
	deleting bool
}

// waitsForDependents tells whether others have to go before there is anything to destroy.
func waitsForDependents(stack *pulumiv1.Stack) bool {
	return !stack.DeletionTimestamp.IsZero() && stack.Spec.DestroyAfterDependents && !stack.Spec.Suspend && nothingToDestroy(stack) == ""
}

// observeDependents finds the Stacks that have to go first. Those that this one depends on itself, on whatever way, do not count: in
// a cycle nobody waits.
func (r *Reconciler) observeDependents(ctx context.Context, o *observation) error {
	running := o.update != nil && !o.update.IsComplete()
	if !waitsForDependents(o.stack) || running {
		return nil
	}
	found, err := r.findDependents(ctx, o.stack)
	if err != nil || len(found) == 0 {
		return err
	}
	around, err := r.walk(ctx, o.stack, namedBy, func(types.NamespacedName, types.NamespacedName) (stop bool) { return false })
	if err != nil {
		return err
	}
	o.dependents = slices.DeleteFunc(found, func(item dependent) bool {
		_, needed := around[item.name]
		return needed
	})
	return nil
}

// findDependents returns the Stacks that name this one. The cache does not have those of other shards, nor those that were created just
// now, so that the API server is asked before it is believed that there are none.
func (r *Reconciler) findDependents(ctx context.Context, stack *pulumiv1.Stack) ([]dependent, error) {
	self := client.ObjectKeyFromObject(stack)
	var list pulumiv1.StackList
	if err := r.List(ctx, &list, client.MatchingFields{prerequisiteIndex: self.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the stacks that depend on this one: %w", err)
	}
	if found := r.among(list.Items, self); len(found) > 0 {
		return found, nil
	}
	if r.AllowCrossNamespaceRefs {
		found, err := r.listDependents(ctx, self)
		if !apierrors.IsForbidden(err) {
			return found, err
		}
	}
	return r.listDependents(ctx, self, client.InNamespace(stack.Namespace))
}

// listDependents asks the API server.
func (r *Reconciler) listDependents(ctx context.Context, self types.NamespacedName, where ...client.ListOption) ([]dependent, error) {
	var found []dependent
	for token := ""; ; {
		var page pulumiv1.StackList
		options := append([]client.ListOption{client.Limit(pageSize), client.Continue(token)}, where...)
		if err := r.Live.List(ctx, &page, options...); err != nil {
			return nil, fmt.Errorf("list the stacks that depend on this one: %w", err)
		}
		found = append(found, r.among(page.Items, self)...)
		if token = page.Continue; token == "" {
			return found, nil
		}
	}
}

// among returns those of the Stacks that name the Stack, and may.
func (r *Reconciler) among(stacks []pulumiv1.Stack, self types.NamespacedName) []dependent {
	var found []dependent
	for i := range stacks {
		name := client.ObjectKeyFromObject(&stacks[i])
		names := slices.ContainsFunc(r.followed(&stacks[i], namedBy), func(item dependency) bool { return item.name == self })
		if names && name != self {
			found = append(found, dependent{name: name, deleting: !stacks[i].DeletionTimestamp.IsZero()})
		}
	}
	return found
}

// describeDependents names some of the Stacks that have to go first, those that nobody deletes before all others, and says what to do.
func describeDependents(list []dependent) string {
	list = slices.SortedFunc(slices.Values(list), func(a, b dependent) int {
		if a.deleting != b.deleting {
			return map[bool]int{false: -1, true: 1}[a.deleting]
		}
		return cmp.Compare(a.name.String(), b.name.String())
	})
	var names []string
	for _, item := range list[:min(len(list), maxShownDependents)] {
		if item.deleting {
			names = append(names, item.name.String()+" (is being deleted)")
			continue
		}
		names = append(names, item.name.String())
	}
	if left := len(list) - maxShownDependents; left > 0 {
		names = append(names, fmt.Sprintf("%d more", left))
	}
	return fmt.Sprintf("the resources are destroyed when no other Stack depends on this one any more: %s; delete these Stacks, "+
		"take this one out of their dependsOn and prerequisites, set spec.destroyAfterDependents to false", strings.Join(names, ", "))
}

// waitingForDependent returns the Stacks that the Stack names and that may wait for its end.
func (r *Reconciler) waitingForDependent(ctx context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, item := range namedBy(object.(*pulumiv1.Stack)) {
		named := &pulumiv1.Stack{}
		err := r.Get(ctx, item.name, named, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot read a stack that may have to be woken", "stack", item.name)
		}
		if err == nil && waitsForDependents(named) {
			requests = append(requests, reconcile.Request{NamespacedName: item.name})
		}
	}
	return requests
}

// dependentChanged passes a Stack that is gone, is being deleted, or depends on others than before.
var dependentChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*pulumiv1.Stack)
		after, same := e.ObjectNew.(*pulumiv1.Stack)
		every := func(dependency) bool { return true }
		return ok && same && (before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!slices.Equal(namesOf(before, every), namesOf(after, every)))
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
