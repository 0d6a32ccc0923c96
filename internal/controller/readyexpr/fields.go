package readyexpr

import (
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Bounds of the parts of a Stack that an expression can read. The controller stays far below them, but other writers of a status need not.
const (
	maxExposedEntries    = 1000
	maxExposedConditions = 50
	// outputOverhead is what an element of an output takes in memory in addition to its text, in bytes.
	outputOverhead = 64
)

// exposedFields are the fields of a Stack that a readyExpr may read, also for a dependency in another namespace. None of them can contain a
// secret. So the message of a condition, which may quote the output of a program, is not exposed, and neither are annotations, templates
// and URLs. A field without a value is missing. The documentation lists the fields, and a test compares both lists.
var exposedFields = map[string]func(*pulumiv1.Stack) any{
	"apiVersion": func(*pulumiv1.Stack) any { return pulumiv1.GroupVersion.String() },
	"kind":       func(*pulumiv1.Stack) any { return pulumiv1.StackKind },

	"metadata.name":              func(s *pulumiv1.Stack) any { return s.Name },
	"metadata.namespace":         func(s *pulumiv1.Stack) any { return s.Namespace },
	"metadata.uid":               func(s *pulumiv1.Stack) any { return string(s.UID) },
	"metadata.generation":        func(s *pulumiv1.Stack) any { return s.Generation },
	"metadata.labels":            func(s *pulumiv1.Stack) any { return s.Labels },
	"metadata.creationTimestamp": func(s *pulumiv1.Stack) any { return s.CreationTimestamp },
	"metadata.deletionTimestamp": func(s *pulumiv1.Stack) any { return s.DeletionTimestamp },

	"spec.stack":   func(s *pulumiv1.Stack) any { return s.Spec.Stack },
	"spec.branch":  func(s *pulumiv1.Stack) any { return s.Spec.Branch },
	"spec.commit":  func(s *pulumiv1.Stack) any { return s.Spec.Commit },
	"spec.suspend": func(s *pulumiv1.Stack) any { return s.Spec.Suspend },
	"spec.preview": func(s *pulumiv1.Stack) any { return s.Spec.Preview },

	"status.observedGeneration":        func(s *pulumiv1.Stack) any { return s.Status.ObservedGeneration },
	"status.conditions":                func(s *pulumiv1.Stack) any { return s.Status.Conditions },
	"status.deployed":                  func(s *pulumiv1.Stack) any { return s.Status.Deployed },
	"status.lastAttemptedRevision":     func(s *pulumiv1.Stack) any { return s.Status.LastAttemptedRevision },
	"status.lastAppliedRevision":       func(s *pulumiv1.Stack) any { return s.Status.LastAppliedRevision },
	"status.lastAppliedOriginRevision": func(s *pulumiv1.Stack) any { return s.Status.LastAppliedOriginRevision },
	"status.lastHandledReconcileAt":    func(s *pulumiv1.Stack) any { return s.Status.LastHandledReconcileAt },

	"status.currentUpdate.name":       ofCurrent(func(u *pulumiv1.CurrentStackUpdate) any { return u.Name }),
	"status.currentUpdate.generation": ofCurrent(func(u *pulumiv1.CurrentStackUpdate) any { return u.Generation }),
	"status.currentUpdate.commit":     ofCurrent(func(u *pulumiv1.CurrentStackUpdate) any { return u.Commit }),
	"status.currentUpdate.revision":   ofCurrent(func(u *pulumiv1.CurrentStackUpdate) any { return u.Revision }),

	"status.lastUpdate.name":                 ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.Name }),
	"status.lastUpdate.generation":           ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.Generation }),
	"status.lastUpdate.type":                 ofLast(func(u *pulumiv1.StackUpdateStatus) any { return string(u.Type) }),
	"status.lastUpdate.state":                ofLast(func(u *pulumiv1.StackUpdateStatus) any { return string(u.State) }),
	"status.lastUpdate.reason":               ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.Reason }),
	"status.lastUpdate.lastAttemptedCommit":  ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.LastAttemptedCommit }),
	"status.lastUpdate.lastSuccessfulCommit": ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.LastSuccessfulCommit }),
	"status.lastUpdate.revision":             ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.Revision }),
	"status.lastUpdate.lastResyncTime":       ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.LastResyncTime }),
	"status.lastUpdate.failures":             ofLast(func(u *pulumiv1.StackUpdateStatus) any { return u.Failures }),
}

// Fields that are not in exposedFields: only self has the annotations, and the outputs need the allowance of the evaluation.
const (
	annotationsField = "metadata.annotations"
	outputsField     = "status.outputs"
)

// readable returns an error for a path that is not exposed, such as "dep.spec.secrets". The parts of an exposed field may be read, and so
// may a path that contains an exposed field.
func (s subject) readable(path string) error {
	variable, field, _ := strings.Cut(path, ".")
	if variable == "dep" && s == ofObjects {
		return objectReadable(path, field)
	}
	if field == "" || related(field, outputsField) || variable == "self" && related(field, annotationsField) {
		return nil
	}
	for exposed := range exposedFields {
		if related(field, exposed) {
			return nil
		}
	}
	return fmt.Errorf("%s is not a field that it may read; see the list in %s", Shorten(path), readyExprDocs)
}

// related reports whether the paths are the same, or one of them is inside the other.
func related(a, b string) bool {
	return strings.HasPrefix(a+".", b+".") || strings.HasPrefix(b+".", a+".")
}

// exposed returns the Stack as an expression sees it in the variable.
func exposed(variable string, stack *pulumiv1.Stack, left *allowance) map[string]any {
	content := map[string]any{}
	for path, value := range exposedFields {
		expose(content, path, value(stack))
	}
	if variable == "self" && len(stack.Annotations) <= maxExposedEntries {
		annotations := maps.Clone(stack.Annotations)
		left.use(len(annotations) * outputOverhead)
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		expose(content, annotationsField, annotations)
	}
	// A check asks for an output with .?name also where a Stack has no outputs.
	if outputs := stack.Status.Outputs; (len(outputs) > 0 || variable == "stack") && len(outputs) <= maxExposedEntries {
		left.use(len(outputs) * 2 * outputOverhead)
		lazy := make(map[string]any, len(outputs))
		for name := range outputs {
			lazy[name] = &exposedOutput{raw: outputs[name].Raw, left: left}
		}
		expose(content, outputsField, lazy)
	}
	return content
}

// expose puts the value at the path, unless it is nil, empty or too large.
func expose(content map[string]any, path string, value any) {
	if value = shown(value); value == nil {
		return
	}
	parts := strings.Split(path, ".")
	for _, part := range parts[:len(parts)-1] {
		inner, ok := content[part].(map[string]any)
		if !ok {
			inner = map[string]any{}
			content[part] = inner
		}
		content = inner
	}
	content[parts[len(parts)-1]] = value
}

// shown returns the value of a field as an expression sees it, or nil when there is no value.
func shown(value any) any {
	switch value := value.(type) {
	case string:
		if value == "" {
			return nil
		}
	case map[string]string:
		if len(value) == 0 || len(value) > maxExposedEntries {
			return nil
		}
	case metav1.Time:
		return shown(&value)
	case *metav1.Time:
		if value.IsZero() {
			return nil
		}
		return value.UTC().Format(time.RFC3339)
	case []metav1.Condition:
		return shownConditions(value)
	}
	return value
}

func shownConditions(conditions []metav1.Condition) any {
	if len(conditions) == 0 || len(conditions) > maxExposedConditions {
		return nil
	}
	list := make([]any, 0, len(conditions))
	for i := range conditions {
		item := map[string]any{
			"type": conditions[i].Type, "status": string(conditions[i].Status), "reason": conditions[i].Reason,
			"observedGeneration": conditions[i].ObservedGeneration,
		}
		expose(item, "lastTransitionTime", conditions[i].LastTransitionTime)
		list = append(list, item)
	}
	return list
}

func ofLast(value func(*pulumiv1.StackUpdateStatus) any) func(*pulumiv1.Stack) any {
	return func(stack *pulumiv1.Stack) any {
		if stack.Status.LastUpdate == nil {
			return nil
		}
		return value(stack.Status.LastUpdate)
	}
}

func ofCurrent(value func(*pulumiv1.CurrentStackUpdate) any) func(*pulumiv1.Stack) any {
	return func(stack *pulumiv1.Stack) any {
		if stack.Status.CurrentUpdate == nil {
			return nil
		}
		return value(stack.Status.CurrentUpdate)
	}
}

// exposedOutput is one output of a Stack. It is decoded when an expression reads it.
type exposedOutput struct {
	raw   []byte
	left  *allowance
	value ref.Val
}

// decode decodes the output. It first subtracts the cost of the value from the allowance of the evaluation.
func (o *exposedOutput) decode() ref.Val {
	if o.value != nil {
		return o.value
	}
	elements := 1
	for _, char := range o.raw {
		if strings.IndexByte(",[{", char) >= 0 {
			elements++
		}
	}
	o.left.use(len(o.raw) + elements*outputOverhead)
	var value any
	if err := utiljson.Unmarshal(o.raw, &value); err != nil {
		return types.NewErr("the output is not JSON")
	}
	o.value = exposedAdapter{}.NativeToValue(value)
	return o.value
}

// exposedAdapter converts what exposed returns into CEL values.
type exposedAdapter struct{}

// NativeToValue implements types.Adapter.
func (a exposedAdapter) NativeToValue(value any) ref.Val {
	switch value := value.(type) {
	case *exposedOutput:
		return value.decode()
	case map[string]any:
		return types.NewStringInterfaceMap(a, value)
	case []any:
		return types.NewDynamicList(a, value)
	}
	return types.DefaultTypeAdapter.NativeToValue(value)
}
