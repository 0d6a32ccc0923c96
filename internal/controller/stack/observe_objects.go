package stack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/readyexpr"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
)

// dependencyKindsFlag is the flag of the controller that lists the kinds of the objects that Stacks may depend on.
const dependencyKindsFlag = "--dependency-kinds"

// objectDependencies is what is known of the objects of other kinds in spec.dependsOn. They are read only for an update that nothing else
// holds back: a Stack that has nothing to do asks nobody for them, and nobody watches them for it.
type objectDependencies struct {
	// read is true when they were read.
	read bool
	// problem is why the first of them that is not ready keeps the Stack from being updated; nil when none does.
	problem *objectProblem
}

// objectProblem is why an object keeps a Stack from being updated.
type objectProblem struct {
	// reason and message go into the conditions.
	reason, message string
	// found says how a change is found.
	found detection
	// after is the time to the next reconcile; zero leaves it to found.
	after time.Duration
}

// detection is how the controller finds out that an object has changed.
type detection int

const (
	// byWatching finds a change with the watch on the kind.
	byWatching detection = iota
	// byPolling finds a change with a request every few seconds, because the kind cannot be watched.
	byPolling
	// byAskingAgain finds out, with a request every now and then, that the object can be read again.
	byAskingAgain
)

// objectsOf returns the objects of other kinds that the Stack waits for: none if it is being deleted. It reads as many entries as
// namedDependencies.
func objectsOf(stack *pulumiv1.Stack) []dependency {
	var list []dependency
	if !stack.DeletionTimestamp.IsZero() {
		return nil
	}
	for _, reference := range stack.Spec.DependsOn[:min(len(stack.Spec.DependsOn), maxDependencies)] {
		if !reference.IsStack() {
			item := dependencyOf(stack, &reference)
			item.kind = schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind)
			list = append(list, item)
		}
	}
	return list
}

// isObject reports whether the dependency is of another kind than Stack.
func (d dependency) isObject() bool { return d.kind.Kind != "" }

// objectName returns the name under which the watch reports changes of the object.
func (d dependency) objectName() objectwatch.Name {
	return objectwatch.Name{GroupKind: d.kind.GroupKind(), Namespace: d.name.Namespace, Name: d.name.Name}
}

// object returns the kind and the name.
func (d dependency) object() string {
	if d.isObject() {
		return d.String()
	}
	return pulumiv1.StackKind + " " + d.name.String()
}

// String returns the name of the dependency in messages, where a Stack has no kind.
func (d dependency) String() string {
	if d.isObject() {
		return d.kind.Kind + " " + d.name.String()
	}
	return d.name.String()
}

// checkExpression returns an error if the readyExpr cannot be used.
func (d dependency) checkExpression() error {
	if d.isObject() {
		return readyexpr.CheckObject(d.expression)
	}
	return readyexpr.Check(d.expression)
}

// checkKind returns the problem if Stacks may not depend on objects of the kind. Only a restart of the controller with another flag solves
// it, or an edit.
func (r *Reconciler) checkKind(item dependency) *dependencyProblem {
	if !item.isObject() || r.Objects.Allows(item.kind.GroupKind()) {
		return nil
	}
	message := fmt.Sprintf("cannot depend on %s: objects of the kind %s in the group %q are not allowed as dependencies", item, item.kind.Kind, item.kind.Group)
	if _, err := objectwatch.ParseKinds([]string{objectwatch.Flag(item.kind.GroupKind())}); err == nil {
		message += fmt.Sprintf("; to allow them, the platform team adds %s to the flag %s of the controller",
			objectwatch.Flag(item.kind.GroupKind()), dependencyKindsFlag)
	}
	return &dependencyProblem{reason: pulumiv1.AccessDeniedReason, permanent: true, message: message}
}

// observeObjects reads the objects of other kinds that the Stack depends on, up to the first one that keeps it from being updated.
func (r *Reconciler) observeObjects(ctx context.Context, o *observation) error {
	o.objects = objectDependencies{read: true}
	self := client.ObjectKeyFromObject(o.stack)
	evaluating := r.evaluating(&r.evaluatedObjects, self)
	for _, item := range objectsOf(o.stack) {
		var err error
		if o.objects.problem, err = r.observeObject(ctx, o.stack, item, evaluating); err != nil {
			return err
		}
		if o.objects.problem != nil {
			break
		}
	}
	keepEvaluated(&r.evaluatedObjects, self, evaluating, o.objects.problem != nil && o.objects.problem.after == evaluationPause)
	return nil
}

// observeObject returns why the object keeps the Stack from being updated; nil when it does not.
func (r *Reconciler) observeObject(ctx context.Context, self *pulumiv1.Stack, item dependency, evaluating *evaluations) (*objectProblem, error) {
	problem := &objectProblem{reason: item.reason, found: byAskingAgain}
	answer := objectwatch.Answer{}
	var err error
	if item.name.Name != "" { // The API server admits an empty name in a reference, but not in a request.
		key := objectwatch.Key{GroupVersionKind: item.kind, Namespace: item.name.Namespace, Name: item.name.Name}
		answer, err = r.Objects.Read(ctx, self.Namespace, key)
	}
	if unreadable, ok := errors.AsType[*objectwatch.Problem](err); ok {
		if unreadable.Denied {
			problem.reason = pulumiv1.AccessDeniedReason
		}
		problem.message = fmt.Sprintf("%s %s %s", item.field, item, unreadable)
		return problem, nil
	}
	if err != nil {
		return nil, err
	}
	why, err := unmetObject(ctx, item, self, answer.Object, evaluating)
	switch {
	case err != nil:
		problem.message, problem.after = err.Error(), evaluationPause
		return problem, nil
	case why == "":
		return nil, nil
	}
	problem.message = fmt.Sprintf("%s %s %s", item.field, item, why)
	if problem.found = byPolling; answer.Watched {
		problem.found = byWatching
	}
	if answer.Outdated {
		problem.after = answer.After
	}
	return problem, nil
}

// unmetObject returns why the object is not ready; empty when it is ready. The only error that it returns is errEvaluationTime. An object
// that is being deleted will not be there when the program needs it; only an expression can say that it does not matter.
func unmetObject(ctx context.Context, item dependency, self *pulumiv1.Stack, object *objectwatch.Object, evaluating *evaluations) (problem string, err error) {
	switch {
	case object == nil:
		return "does not exist", nil
	case item.expression != "":
		ready, err := evaluating.isObjectReady(ctx, item.expression, self, object)
		return describeEvaluation(item.expression, ready, err)
	case item.onlyExists && object.DeletionTimestamp == nil:
		return "", nil
	}
	return object.Unready(), nil
}
