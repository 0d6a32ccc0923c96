package stack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	corev1 "k8s.io/api/core/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/jsonparts"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/internal/references"
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
	read := references.OfStack(stack)
	for i := range stack.Spec.Outputs {
		object := &stack.Spec.Outputs[i]
		kind := cmp.Or(object.Kind, pulumiv1.OutputSecret)
		if slices.Contains(read, references.Key{Kind: references.Kind(kind), Namespace: stack.Namespace, Name: object.Name}) {
			return fmt.Errorf("spec.outputs: the Stack also reads %s %q: each update would be a reason for another one", kind, object.Name)
		}
		for j := range object.Keys {
			if path := object.Keys[j].Path; path != "" {
				if _, err := resource.ParsePropertyPathStrict(path); err != nil {
					return fmt.Errorf("spec.outputs: key %q of %s %q: the path cannot be read: %w", object.Keys[j].Key, kind, object.Name, err)
				}
			}
		}
	}
	return nil
}

// outputTable has the outputs of a stack by their names, for the objects that are made of them.
type outputTable struct {
	values map[string][]byte
	// keys have the keys under which an object has all outputs, as the Secret of the Update has them.
	keys map[string]string
	// secret has the names of those that are secret or contain a secret, omitted those that are not stored.
	secret, omitted map[string]bool
	// decoded has those into which a path leads. parts is how many keys and values they have together.
	decoded map[string]any
	parts   int
}

func newOutputTable(secret *corev1.Secret) *outputTable {
	stored := outputsIn(secret)
	t := &outputTable{values: map[string][]byte{}, keys: map[string]string{}, secret: map[string]bool{}, omitted: map[string]bool{}, decoded: map[string]any{}}
	for key, value := range stored.values {
		name := stored.nameOf(key)
		t.values[name], t.keys[name] = value, key
	}
	for _, key := range stored.masked {
		t.secret[stored.nameOf(key)] = true
	}
	for key := range stored.shown {
		t.secret[stored.nameOf(key)] = true
	}
	for _, name := range stored.omitted {
		t.omitted[name] = true
	}
	return t
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

// allKeys returns a key for each output that the kind of object can have.
func (t *outputTable) allKeys(kind pulumiv1.OutputObjectKind) (keys []pulumiv1.OutputKey) {
	for _, name := range slices.Sorted(maps.Keys(t.values)) {
		if kind != pulumiv1.OutputConfigMap || !t.secret[name] {
			keys = append(keys, pulumiv1.OutputKey{Key: t.keys[name], Output: name})
		}
	}
	return keys
}

// value returns the value of a key; nil when the key is to be left out.
func (t *outputTable) value(kind pulumiv1.OutputObjectKind, key *pulumiv1.OutputKey) ([]byte, *outputProblem) {
	if key.All {
		return t.all(kind)
	}
	value, known := t.values[key.Output]
	switch {
	case !known && t.omitted[key.Output]:
		return nil, &outputProblem{reason: pulumiv1.OutputsTooLargeReason, message: fmt.Sprintf("the output %q is too large to be stored", key.Output)}
	case !known && key.Optional:
		return nil, nil
	case !known:
		return nil, &outputProblem{reason: pulumiv1.OutputNotFoundReason, message: fmt.Sprintf("the stack has no output %q", key.Output)}
	case kind == pulumiv1.OutputConfigMap && t.secret[key.Output]:
		return nil, &outputProblem{reason: pulumiv1.OutputSecretReason, message: fmt.Sprintf("the output %q is secret, or a part of it is: use a Secret", key.Output)}
	}
	if key.Path != "" {
		var problem *outputProblem
		if value, problem = t.at(key, value); value == nil {
			return nil, problem
		}
	}
	return format(value, key.Format), nil
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
	size := 0
	var names []string
	for name, value := range t.values {
		if kind == pulumiv1.OutputConfigMap && t.secret[name] || bytes.Equal(value, []byte("null")) {
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
		out.Write(t.values[name])
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// at returns what is at the path in an output, as JSON; nil, without a problem, when there is nothing and the key is optional.
func (t *outputTable) at(key *pulumiv1.OutputKey, value []byte) ([]byte, *outputProblem) {
	content, known := t.decoded[key.Output]
	if !known {
		parts, depth := jsonparts.Count(value)
		if t.parts += parts; t.parts > jsonparts.MaxParts || depth > jsonparts.MaxDepth {
			return nil, &outputProblem{reason: pulumiv1.OutputsTooLargeReason,
				message: fmt.Sprintf("the output %q has too many parts, or too deep ones, for a path", key.Output)}
		}
		decoder := json.NewDecoder(bytes.NewReader(value))
		decoder.UseNumber()
		if err := decoder.Decode(&content); err != nil {
			content = nil // not JSON: nothing can be found in it
		}
		t.decoded[key.Output] = content
	}
	path, err := resource.ParsePropertyPathStrict(key.Path)
	if err != nil {
		return nil, &outputProblem{reason: pulumiv1.SpecInvalidReason, message: fmt.Sprintf("the path cannot be read: %s", err)} // see checkOutputs
	}
	found := true
	for _, step := range path {
		if content, found = below(content, step); !found {
			break
		}
	}
	switch {
	case found:
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(content) // it was decoded from JSON
		return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
	case key.Optional:
		return nil, nil
	}
	return nil, &outputProblem{reason: pulumiv1.OutputNotFoundReason, message: fmt.Sprintf("the output %q has nothing at the path %q", key.Output, key.Path)}
}

// below returns what an object or a list has at one step of a path.
func below(content, step any) (any, bool) {
	switch content := content.(type) {
	case map[string]any:
		if name, isName := step.(string); isName {
			value, found := content[name]
			return value, found
		}
	case []any:
		if i, isIndex := step.(int); isIndex && i >= 0 && i < len(content) {
			return content[i], true
		}
	}
	return nil, false
}
