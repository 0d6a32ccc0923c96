package readyexpr

import (
	"context"
	"fmt"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
)

// objectFields are the fields of an object of another kind that a readyExpr may read. The controller reads the object with its own rights,
// so that whoever writes the expression could otherwise read what these rights show and theirs do not: there is no spec, no message, no
// annotation, and nothing else of the status. The documentation lists the fields, and a test compares both lists.
var objectFields = map[string]func(*objectwatch.Object) any{
	"apiVersion": func(o *objectwatch.Object) any { return o.APIVersion },
	"kind":       func(o *objectwatch.Object) any { return o.Kind },

	"metadata.name":              func(o *objectwatch.Object) any { return o.Name },
	"metadata.namespace":         func(o *objectwatch.Object) any { return o.Namespace },
	"metadata.uid":               func(o *objectwatch.Object) any { return string(o.UID) },
	"metadata.generation":        func(o *objectwatch.Object) any { return o.Generation },
	"metadata.labels":            func(o *objectwatch.Object) any { return o.Labels },
	"metadata.creationTimestamp": func(o *objectwatch.Object) any { return o.CreationTimestamp },
	"metadata.deletionTimestamp": func(o *objectwatch.Object) any { return o.DeletionTimestamp },

	"status.observedGeneration": func(o *objectwatch.Object) any {
		if !o.HasObservedGeneration {
			return nil
		}
		return o.ObservedGeneration
	},
	"status.conditions": func(o *objectwatch.Object) any { return o.Conditions },
}

// objectReadable returns an error for a field of an object of another kind that is not exposed. The path is the field with its variable.
func objectReadable(path, field string) error {
	for exposed := range objectFields {
		if field == "" || related(field, exposed) {
			return nil
		}
	}
	return fmt.Errorf("%s is not a field that it may read of an object that is no Stack; see the list in %s", Shorten(path), readyExprDocs)
}

// CheckObject returns an error that explains to the user why the expression of a dependency on an object of another kind cannot be used, or
// nil.
func CheckObject(expression string) error {
	_, err := compileFor(ofObjects, expression)
	return err
}

// EvaluateObject is Evaluate for an object of another kind: it reports whether the object "dep" is ready for the Stack "self".
func EvaluateObject(ctx context.Context, expression string, self *pulumiv1.Stack, dep *objectwatch.Object) (bool, error) {
	program, err := compileFor(ofObjects, expression)
	if err != nil {
		return false, err
	}
	return run(ctx, program, objectVariables(self, dep))
}

// objectVariables returns the variables of one evaluation, including its allowance.
func objectVariables(self *pulumiv1.Stack, dep *objectwatch.Object) map[string]any {
	left := newAllowance()
	return map[string]any{
		allowanceVariable: left,
		"self":            func() any { return exposed("self", self, left) },
		"dep":             func() any { return exposedObject(dep) },
	}
}

// exposedObject returns the object as an expression sees it.
func exposedObject(object *objectwatch.Object) map[string]any {
	content := map[string]any{}
	for path, value := range objectFields {
		expose(content, path, value(object))
	}
	return content
}
