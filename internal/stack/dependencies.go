package stack

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// observeDependencies names the first prerequisite that is not met. A Stack that is being deleted waits for nobody.
func (r *Reconciler) observeDependencies(ctx context.Context, o *observation) error {
	if !o.stack.DeletionTimestamp.IsZero() {
		return nil
	}
	for _, prerequisite := range o.stack.Spec.Prerequisites {
		name := types.NamespacedName{Namespace: o.stack.Namespace, Name: prerequisite.Name}
		required, err := r.getStack(ctx, name)
		if err != nil {
			return err
		}
		if problem := unmet(required, prerequisite, o.now); problem != "" {
			o.dependencyProblem = fmt.Sprintf("prerequisite %s %s", name, problem)
			return nil
		}
	}
	for _, dependency := range o.stack.Spec.DependsOn {
		name := types.NamespacedName{Namespace: dependency.Namespace, Name: dependency.Name}
		if name.Namespace == "" {
			name.Namespace = o.stack.Namespace
		}
		if name.Namespace != o.stack.Namespace && !r.AllowCrossNamespaceRefs {
			o.forbiddenDependency = fmt.Sprintf("cannot depend on Stack %s: references to another namespace are not allowed", name)
			return nil
		}
		required, err := r.getStack(ctx, name)
		if err != nil {
			return err
		}
		if problem := notReady(required); problem != "" {
			o.dependencyProblem = fmt.Sprintf("dependency %s %s", name, problem)
			return nil
		}
	}
	return nil
}

// getStack returns nil for a Stack that does not exist.
func (r *Reconciler) getStack(ctx context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
	stack := &pulumiv1.Stack{}
	if err := r.Get(ctx, name, stack); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read the stack %s: %w", name, err)
	}
	return stack, nil
}

// unmet says why the prerequisite is not met; empty when it is.
func unmet(required *pulumiv1.Stack, prerequisite pulumiv1.PrerequisiteRef, now time.Time) string {
	if problem := notReady(required); problem != "" {
		return problem
	}
	if prerequisite.Requirement == nil || prerequisite.Requirement.SucceededWithinDuration == nil {
		return ""
	}
	window := prerequisite.Requirement.SucceededWithinDuration.Duration
	if age := now.Sub(required.Status.LastUpdate.LastResyncTime.Time); age > window {
		return fmt.Sprintf("succeeded %s ago, which is longer than %s", age.Round(time.Second), window)
	}
	return ""
}

func notReady(required *pulumiv1.Stack) string {
	switch {
	case required == nil:
		return "does not exist"
	case required.Status.ObservedGeneration != required.Generation || !conditions.IsReady(required):
		return "is not ready"
	case required.Status.LastUpdate == nil || required.Status.LastUpdate.State != pulumiv1.StackUpdateSucceeded:
		return "has not succeeded yet"
	}
	return ""
}
