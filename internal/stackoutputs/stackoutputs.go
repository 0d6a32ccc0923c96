// Package stackoutputs reads the outputs of a stack from the Secret in which its last update left them: which there are, which of them are
// secret, and what is at a path in one.
package stackoutputs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/jsonparts"
)

// NotFoundError says that the stack has no such output, or nothing at the path in it. It quotes no value.
type NotFoundError struct{ message string }

func (e *NotFoundError) Error() string { return e.message }

// TooLargeError says that the output was too large to be stored, or has too many parts for a path. It quotes no value.
type TooLargeError struct{ message string }

func (e *TooLargeError) Error() string { return e.message }

// UnknownError says that the stack has the output, and that Pulumi did not know its value after the last update. It quotes no value.
type UnknownError struct{ message string }

func (e *UnknownError) Error() string { return e.message }

// Stored are the outputs in the Secret of an Update, by their keys there.
type Stored struct {
	// Values have the JSON of each output.
	Values map[string][]byte
	// Masked are the keys of those that are secret, and Shown has what to show of those that have secret parts.
	Masked []string
	Shown  map[string]json.RawMessage
	// names have the names of the outputs whose names are not their keys, omitted the names of those that were too large to be stored, and
	// unknown the names of those whose values Pulumi did not know.
	names            map[string]string
	omitted, unknown []string
}

// In returns the outputs in the Secret, none for nil. Whoever may edit Secrets may remove or break the annotations: then every value is
// secret.
func In(secret *corev1.Secret) Stored {
	if secret == nil {
		return Stored{}
	}
	stored := Stored{Values: secret.Data}
	for annotation, into := range map[string]any{
		autov1alpha1.SecretOutputsAnnotation: &stored.Masked, autov1alpha1.OutputNamesAnnotation: &stored.names,
		autov1alpha1.ShownOutputsAnnotation: &stored.Shown, autov1alpha1.OmittedOutputsAnnotation: &stored.omitted,
		autov1alpha1.UnknownOutputsAnnotation: &stored.unknown,
	} {
		text, set := secret.Annotations[annotation]
		if !set && annotation != autov1alpha1.SecretOutputsAnnotation || json.Unmarshal([]byte(text), into) == nil {
			continue
		}
		return Stored{Values: secret.Data, Masked: slices.Collect(maps.Keys(secret.Data))}
	}
	return stored
}

// NameOf returns the name of the output with the key.
func (s *Stored) NameOf(key string) string {
	if name, renamed := s.names[key]; renamed {
		return name
	}
	return key
}

// Table has the outputs of a stack by their names.
type Table struct {
	// Values have the JSON of each output, and Keys its key in the Secret.
	Values map[string][]byte
	Keys   map[string]string
	// Secret has the names of those that are secret or contain a secret.
	Secret map[string]bool

	// without has the errors of the outputs that have no value here, by their names.
	without map[string]error
	// decoded has those into which a path leads. parts is how many keys and values they have together.
	decoded map[string]any
	parts   int
}

// NewTable returns the outputs in the Secret.
func NewTable(secret *corev1.Secret) *Table {
	stored := In(secret)
	t := &Table{Values: map[string][]byte{}, Keys: map[string]string{}, Secret: map[string]bool{}, without: map[string]error{}, decoded: map[string]any{}}
	for key, value := range stored.Values {
		name := stored.NameOf(key)
		t.Values[name], t.Keys[name] = value, key
	}
	for _, key := range stored.Masked {
		t.Secret[stored.NameOf(key)] = true
	}
	for key := range stored.Shown {
		t.Secret[stored.NameOf(key)] = true
	}
	for _, name := range stored.omitted {
		t.without[name] = &TooLargeError{fmt.Sprintf("the output %q is too large to be stored", name)}
	}
	for _, name := range stored.unknown {
		t.without[name] = &UnknownError{fmt.Sprintf("the value of the output %q is not known since the last update, as after one of a part of the stack", name)}
	}
	return t
}

// Value returns the JSON of an output, or of what is at the path in it if the path is not empty. The error is a *NotFoundError, a
// *TooLargeError, an *UnknownError, or about the path, which CheckPath refuses.
func (t *Table) Value(name, path string) ([]byte, error) {
	value, known := t.Values[name]
	switch {
	case known && path != "":
		return t.at(name, value, path)
	case known:
		return value, nil
	case t.without[name] != nil:
		return nil, t.without[name]
	}
	return nil, &NotFoundError{fmt.Sprintf("the stack has no output %q", name)}
}

// Without returns the names of the outputs that the stack has and that have no value here, sorted. Nobody knows whether they are secret.
func (t *Table) Without() []string {
	return slices.Sorted(maps.Keys(t.without))
}

// CheckPath returns why the path of an output cannot be read, with the rules of Pulumi; nil for an empty one.
func CheckPath(path string) error {
	if path == "" {
		return nil
	}
	if _, err := resource.ParsePropertyPathStrict(path); err != nil {
		return fmt.Errorf("the path cannot be read: %w", err)
	}
	return nil
}

func (t *Table) at(name string, value []byte, path string) ([]byte, error) {
	content, known := t.decoded[name]
	if !known {
		parts, depth := jsonparts.Count(value)
		if t.parts += parts; t.parts > jsonparts.MaxParts || depth > jsonparts.MaxDepth {
			return nil, &TooLargeError{fmt.Sprintf("the output %q has too many parts, or too deep ones, for a path", name)}
		}
		decoder := json.NewDecoder(bytes.NewReader(value))
		decoder.UseNumber()
		if err := decoder.Decode(&content); err != nil {
			content = nil // not JSON: nothing can be found in it
		}
		t.decoded[name] = content
	}
	steps, err := resource.ParsePropertyPathStrict(path)
	if err != nil {
		return nil, fmt.Errorf("the path cannot be read: %w", err)
	}
	for _, step := range steps {
		var found bool
		if content, found = below(content, step); !found {
			return nil, &NotFoundError{fmt.Sprintf("the output %q has nothing at the path %q", name, path)}
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(content) // it was decoded from JSON
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
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
