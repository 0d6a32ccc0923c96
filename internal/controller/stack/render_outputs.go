package stack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/stackoutputs"
)

// outputProblem says why an object of spec.outputs is not written.
type outputProblem struct {
	// reason and message are those of the condition. The message has no value of an output.
	reason, message string
	// passes is true when it may pass without that anybody does something.
	passes bool
}

// checkOutputs returns an error for the user if spec.outputs can never be written as it is.
func checkOutputs(stack *pulumiv1.Stack) error {
	read := append(references.OfStack(stack), references.OfInputs(stack.Namespace, stack.Spec.Inputs)...)
	for i := range stack.Spec.Outputs {
		object := &stack.Spec.Outputs[i]
		kind := cmp.Or(object.Kind, pulumiv1.OutputSecret)
		if slices.Contains(read, references.Key{Kind: references.Kind(kind), Namespace: stack.Namespace, Name: object.Name}) {
			return fmt.Errorf("spec.outputs: the Stack also reads %s %q: each update would be a reason for another one", kind, object.Name)
		}
		for j := range object.Keys {
			if err := stackoutputs.CheckPath(object.Keys[j].Path); err != nil {
				return fmt.Errorf("spec.outputs: key %q of %s %q: %w", object.Keys[j].Key, kind, object.Name, err)
			}
		}
	}
	return nil
}

// outputTable makes objects of the outputs of a stack.
type outputTable struct{ *stackoutputs.Table }

func newOutputTable(secret *corev1.Secret) *outputTable {
	return &outputTable{stackoutputs.NewTable(secret)}
}

// render returns the object that is asked for, or why it cannot be made.
func (t *outputTable) render(stack *pulumiv1.Stack, wanted *pulumiv1.OutputObject) (*outputobject.Object, *outputProblem) {
	object := &outputobject.Object{
		Kind: cmp.Or(wanted.Kind, pulumiv1.OutputSecret), Namespace: stack.Namespace, Name: wanted.Name, Type: corev1.SecretType(wanted.Type),
		Labels: wanted.Labels, Annotations: wanted.Annotations, Retain: wanted.DeletionPolicy == pulumiv1.OutputRetain,
		Data: map[string][]byte{},
	}
	keys := wanted.Keys
	if len(keys) == 0 {
		keys = t.allKeys(object.Kind)
	}
	size := 0
	for i := range keys {
		value, problem := t.value(object.Kind, &keys[i])
		if problem != nil {
			problem.message = fmt.Sprintf("%s %s: key %s: %s", object.Kind, object.Name, keys[i].Key, problem.message)
			return nil, problem
		}
		if value == nil {
			continue
		}
		if size += len(keys[i].Key) + len(value); size > corev1.MaxSecretSize {
			return nil, &outputProblem{reason: pulumiv1.OutputsTooLargeReason,
				message: fmt.Sprintf("%s %s would have more than %d bytes: choose fewer outputs with keys", object.Kind, object.Name, corev1.MaxSecretSize)}
		}
		object.Data[keys[i].Key] = value
	}
	return object, nil
}

// allKeys returns a key for each output that the kind of object can have, also for those without a value.
func (t *outputTable) allKeys(kind pulumiv1.OutputObjectKind) (keys []pulumiv1.OutputKey) {
	for _, name := range slices.Sorted(maps.Keys(t.Values)) {
		if kind != pulumiv1.OutputConfigMap || !t.Secret[name] {
			keys = append(keys, pulumiv1.OutputKey{Key: t.Keys[name], Output: name})
		}
	}
	for _, name := range t.Without() {
		keys = append(keys, pulumiv1.OutputKey{Key: name, Output: name})
	}
	return keys
}

// value returns the value of a key; nil when the key is to be left out.
func (t *outputTable) value(kind pulumiv1.OutputObjectKind, key *pulumiv1.OutputKey) ([]byte, *outputProblem) {
	if key.All {
		return t.all(kind)
	}
	if kind == pulumiv1.OutputConfigMap && t.Secret[key.Output] {
		return nil, &outputProblem{reason: pulumiv1.OutputSecretReason, message: fmt.Sprintf("the output %q is secret, or a part of it is: use a Secret", key.Output)}
	}
	value, err := t.Value(key.Output, key.Path)
	notFound, isMissing := errors.AsType[*stackoutputs.NotFoundError](err)
	unknown, isUnknown := errors.AsType[*stackoutputs.UnknownError](err)
	tooLarge, isTooLarge := errors.AsType[*stackoutputs.TooLargeError](err)
	switch {
	case err == nil:
		return format(value, key.Format), nil
	case isMissing && key.Optional:
		return nil, nil
	case isMissing:
		return nil, &outputProblem{reason: pulumiv1.OutputNotFoundReason, message: notFound.Error()}
	case isUnknown:
		return nil, &outputProblem{reason: pulumiv1.OutputNotFoundReason, message: unknown.Error()}
	case isTooLarge:
		return nil, &outputProblem{reason: pulumiv1.OutputsTooLargeReason, message: tooLarge.Error()}
	}
	return nil, &outputProblem{reason: pulumiv1.SpecInvalidReason, message: err.Error()} // see checkOutputs
}

// format returns the value, JSON, in the format; nil for null.
func format(value []byte, as pulumiv1.OutputFormat) []byte {
	switch text := ""; {
	case bytes.Equal(value, []byte("null")):
		return nil
	case as != pulumiv1.OutputJSON && json.Unmarshal(value, &text) == nil:
		return []byte(text)
	}
	return value
}

// all returns a JSON object with all outputs that the kind of object can have.
func (t *outputTable) all(kind pulumiv1.OutputObjectKind) ([]byte, *outputProblem) {
	for _, name := range t.Without() {
		return t.value(kind, &pulumiv1.OutputKey{Output: name})
	}
	size := 0
	var names []string
	for name, value := range t.Values {
		if kind == pulumiv1.OutputConfigMap && t.Secret[name] || bytes.Equal(value, []byte("null")) {
			continue
		}
		names = append(names, name)
		size += len(name) + len(value)
	}
	if size > corev1.MaxSecretSize {
		return nil, &outputProblem{reason: pulumiv1.OutputsTooLargeReason, message: "all outputs together are too large for one object"}
	}
	slices.Sort(names)
	out := bytes.NewBufferString("{")
	for i, name := range names {
		if i > 0 {
			out.WriteByte(',')
		}
		quoted, _ := json.Marshal(name) // a string always has a JSON form
		out.Write(quoted)
		out.WriteByte(':')
		out.Write(t.Values[name])
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}
