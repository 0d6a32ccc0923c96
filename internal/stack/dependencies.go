package stack

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// shortestWindow is what a shorter succeededWithinDuration counts as. In less an update does not end and get noticed, so that the
// prerequisite would run for ever and its dependant never.
const shortestWindow = 10 * time.Second

// dependencyProblem is why another Stack keeps this one from being updated.
type dependencyProblem struct {
	// reason and message go into the conditions.
	reason, message string
	// permanent says that nothing but an edit helps.
	permanent bool
}

// staleDependency is a prerequisite that is ready and succeeded too long ago. It matters only when there is something to update.
type staleDependency struct {
	name types.NamespacedName
	// version is that of the prerequisite.
	version string
	// request is what has to be written into the annotation that asks for an update; empty when it is there, or must not be.
	request string
	message string
}

// dependency is one Stack that another one waits for, in either field.
type dependency struct {
	name types.NamespacedName
	// field is "prerequisite" or "dependency".
	field string
	// reason is that of a dependency that is not ready.
	reason string
	// window is how long ago the last success may be; nil stands for any time.
	window *time.Duration
	// expression says when the dependency is ready, in place of its condition.
	expression string
}

// dependenciesOf returns what the Stack waits for. One that is being deleted waits for nobody.
func dependenciesOf(stack *pulumiv1.Stack) []dependency {
	if !stack.DeletionTimestamp.IsZero() {
		return nil
	}
	return namedBy(stack)
}

// namedBy returns the dependencies that the spec names, also those of a Stack that is being deleted.
func namedBy(stack *pulumiv1.Stack) []dependency {
	list := make([]dependency, 0, len(stack.Spec.Prerequisites)+len(stack.Spec.DependsOn))
	for _, prerequisite := range stack.Spec.Prerequisites {
		item := dependency{
			name:  types.NamespacedName{Namespace: stack.Namespace, Name: prerequisite.Name},
			field: "prerequisite", reason: pulumiv1.PrerequisiteNotSatisfiedReason,
		}
		if required := prerequisite.Requirement; required != nil && required.SucceededWithinDuration != nil {
			item.window = &required.SucceededWithinDuration.Duration
		}
		list = append(list, item)
	}
	for _, reference := range stack.Spec.DependsOn {
		item := dependency{
			name:  types.NamespacedName{Namespace: reference.Namespace, Name: reference.Name},
			field: "dependency", reason: pulumiv1.DependencyNotReadyReason, expression: reference.ReadyExpr,
		}
		if item.name.Namespace == "" {
			item.name.Namespace = stack.Namespace
		}
		list = append(list, item)
	}
	return list
}

// observeDependencies finds the first problem with what the Stack waits for; first of all those that an edit has to mend.
func (r *Reconciler) observeDependencies(ctx context.Context, o *observation) error {
	list := dependenciesOf(o.stack)
	if len(list) == 0 {
		return nil
	}
	if o.dependency = r.misused(o.stack, list); o.dependency != nil {
		return nil
	}
	cycle, err := r.findCycle(ctx, o.stack)
	if err != nil {
		return err
	}
	if cycle != nil {
		o.dependency = cycleProblem(cycle)
		return nil
	}
	for _, item := range list {
		if err := r.observeDependency(ctx, o, item); err != nil || o.dependency != nil {
			return err
		}
	}
	return nil
}

// misused finds what is wrong with the fields themselves, whatever the other Stacks are like.
func (r *Reconciler) misused(stack *pulumiv1.Stack, list []dependency) *dependencyProblem {
	for _, item := range list {
		if item.name.Namespace != stack.Namespace && !r.AllowCrossNamespaceRefs {
			return &dependencyProblem{reason: pulumiv1.AccessDeniedReason, permanent: true,
				message: fmt.Sprintf("cannot depend on Stack %s: references to another namespace are not allowed", item.name)}
		}
		if item.expression == "" {
			continue
		}
		if _, err := compileExpression(item.expression); err != nil {
			return &dependencyProblem{reason: pulumiv1.InvalidCELExpressionReason, permanent: true,
				message: fmt.Sprintf("the readyExpr of dependency %s cannot be used: %s", item.name, err)}
		}
	}
	return nil
}

func (r *Reconciler) observeDependency(ctx context.Context, o *observation, item dependency) error {
	required, err := r.getStack(ctx, item.name)
	problem := ""
	switch {
	case apierrors.IsForbidden(err):
		problem = "cannot be read: this controller may not look into its namespace"
	case err != nil:
		return err
	default:
		problem = unmet(ctx, item, o.stack, required)
	}
	if problem != "" {
		o.dependency = &dependencyProblem{reason: item.reason, message: fmt.Sprintf("%s %s %s", item.field, item.name, problem)}
		return nil
	}
	if stale := staleness(required, item, o.now); stale != nil && o.stale == nil {
		o.stale = stale
	}
	return nil
}

// getStack returns nil for a Stack that does not exist. What it returns must not be changed. The cache does not have the Stacks of other
// shards, so that what it does not have is looked for at the API server.
func (r *Reconciler) getStack(ctx context.Context, name types.NamespacedName) (*pulumiv1.Stack, error) {
	stack := &pulumiv1.Stack{}
	err := r.Get(ctx, name, stack, client.UnsafeDisableDeepCopy)
	if err == nil {
		return stack, nil
	}
	stack = &pulumiv1.Stack{}
	err = r.Live.Get(ctx, name, stack)
	switch {
	case err == nil:
		return stack, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return nil, fmt.Errorf("read the stack %s: %w", name, err)
}

// unmet says why the dependency is not ready; empty when it is.
func unmet(ctx context.Context, item dependency, self, required *pulumiv1.Stack) string {
	if item.expression == "" || required == nil {
		return notReady(required)
	}
	ready, err := evaluateExpression(ctx, item.expression, self, required)
	switch {
	case errors.Is(err, errEvaluation):
		return fmt.Sprintf("is not ready: readyExpr %q: %s", shortened(item.expression), err)
	case err != nil:
		return "is not ready: " + err.Error()
	case !ready:
		return fmt.Sprintf("is not ready: readyExpr %q is false", shortened(item.expression))
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

// staleness returns what there is to do about a prerequisite that succeeded longer ago than its window; nil when it did not.
func staleness(required *pulumiv1.Stack, item dependency, now time.Time) *staleDependency {
	if item.window == nil {
		return nil
	}
	window, last := max(*item.window, shortestWindow), required.Status.LastUpdate
	age := now.Sub(last.LastResyncTime.Time)
	if age <= window {
		return nil
	}
	stale := &staleDependency{name: item.name, version: required.ResourceVersion}
	stale.message = fmt.Sprintf("%s %s succeeded %s ago, which is longer than %s", item.field, item.name, age.Round(time.Second), window)
	request := "after-" + last.Name
	switch {
	case !required.DeletionTimestamp.IsZero():
		stale.message += "; it is being deleted"
	case required.Spec.Suspend:
		stale.message += "; it is suspended and has to be resumed to run again"
	case required.Annotations[pulumiv1.ReconcileRequestAnnotation] == request:
		stale.message += "; it was asked to run again"
	default:
		stale.message += "; it is asked to run again"
		stale.request = request
	}
	return stale
}
