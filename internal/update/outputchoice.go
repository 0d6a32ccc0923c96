package update

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	// maxOutputsAnnotations bounds what the annotations say about the outputs that are stored, and maxOmittedAnnotation what they
	// say about the others, in bytes. An object has at most 256 KiB of annotations.
	maxOutputsAnnotations = 160 << 10
	maxOmittedAnnotation  = 32 << 10
	// namedOutputs is how many of the outputs that are left out a message names, and nameLength how much of each name.
	namedOutputs = 5
	nameLength   = 64
)

// outputChoice is what a Secret holds of the outputs of a stack.
type outputChoice struct {
	outputs map[string]*proto.Output
	// keys are the keys in the Secret of the outputs that it holds, by their names.
	keys map[string]string
	// omitted are the names of the others, sorted.
	omitted []string
}

// chooseOutputs chooses the outputs that fit into a Secret, the smallest first: so what is left out is little in number, and the
// same each time.
func chooseOutputs(outputs map[string]*proto.Output) *outputChoice {
	chosen := &outputChoice{outputs: outputs, keys: outputKeys(slices.Collect(maps.Keys(outputs)))}
	names := slices.SortedFunc(maps.Keys(outputs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(outputs[a].GetValue()), len(outputs[b].GetValue())), strings.Compare(a, b))
	})
	size, described := 0, 0
	for _, name := range names {
		output, key := outputs[name], chosen.keys[name]
		needs, description := len(key)+len(output.GetValue()), descriptionSize(name, key, output.GetSecret())
		if output.GetOmitted() || size+needs > corev1.MaxSecretSize || described+description > maxOutputsAnnotations {
			delete(chosen.keys, name)
			chosen.omitted = append(chosen.omitted, name)
			continue
		}
		size, described = size+needs, described+description
	}
	slices.Sort(chosen.omitted)
	return chosen
}

// descriptionSize is at least what the annotations need for an output, in bytes.
func descriptionSize(name, key string, secret bool) int {
	const punctuation = len(`"":"",`)
	size := 0
	if secret {
		size += len(key) + punctuation
	}
	if name != key {
		// A character has at most six times its length as JSON.
		size += len(key) + 6*len(name) + punctuation
	}
	return size
}

// annotations say what the keys of the Secret do not.
func (c *outputChoice) annotations() (map[string]string, error) {
	secret, names := []string{}, map[string]string{}
	for name, key := range c.keys {
		if c.outputs[name].GetSecret() {
			secret = append(secret, key)
		}
		if name != key {
			names[key] = name
		}
	}
	slices.Sort(secret)
	values := map[string]any{autov1alpha1.SecretOutputsAnnotation: secret}
	if len(names) > 0 {
		values[autov1alpha1.OutputNamesAnnotation] = names
	}
	if len(c.omitted) > 0 {
		values[autov1alpha1.OmittedOutputsAnnotation] = c.listOmitted()
	}
	annotations := map[string]string{}
	for annotation, value := range values {
		encoded, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode the names of outputs: %w", err)
		}
		annotations[annotation] = string(encoded)
	}
	return annotations, nil
}

// listOmitted returns as many names as an annotation may have.
func (c *outputChoice) listOmitted() []string {
	size := 0
	for i, name := range c.omitted {
		if size += descriptionSize(name, "", false); size > maxOmittedAnnotation {
			return c.omitted[:i]
		}
	}
	return c.omitted
}

// problem says which outputs are not in the Secret; empty when all are.
func (c *outputChoice) problem(secret string) string {
	if len(c.omitted) == 0 {
		return ""
	}
	var names []string
	for _, name := range c.omitted[:min(len(c.omitted), namedOutputs)] {
		names = append(names, fmt.Sprintf("%q", name[:min(len(name), nameLength)]))
	}
	if more := len(c.omitted) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%d of %d outputs are not stored, because secret %q cannot hold more than %d bytes: %s",
		len(c.omitted), len(c.outputs), secret, corev1.MaxSecretSize, strings.Join(names, ", "))
}
