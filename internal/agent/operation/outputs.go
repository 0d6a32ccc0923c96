package operation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

const (
	// secretSignatureKey and secretSignatureValue mark a secret in a serialized property. Both are from sdk/go/common/resource/sig.
	secretSignatureKey   = "4dabf18193072939515e22adb298388d"
	secretSignatureValue = "1b47061264138c4ac30d75fd1eb44270"
	// maxPrintedOutputs bounds what `pulumi stack output` may print, in bytes.
	maxPrintedOutputs = 16 << 20
	// maxShown bounds how much is shown of an output that the CLI masked in part, in bytes.
	maxShown = 1 << 10
	// maxOutput bounds the value of an output, in bytes. The outputs end up in a Secret, which holds 1 MiB.
	maxOutput = 1 << 20
)

// unknownValues are the texts in serialized properties that stand for unknown values, one for each type. A part of a stack that was not
// updated leaves them. They are copied from sdk/go/common/resource/plugin, which would make the agent a third larger.
var unknownValues = []string{
	"1c4a061d-8072-4f0a-a4cb-0ff528b18fe7", "3eeb2bf0-c639-47a8-9e75-3b44932eb421", "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
	"6a19a0b0-7e62-4c92-b797-7f8e31da9cc2", "030794c1-ac77-496b-92df-f27374a8bd58", "e48ece36-62e2-4504-bad9-02848725956a",
	"dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
}

// maskedTexts are what the CLI writes into its events in place of the text of any secret of the stack, and of what is in an asset, as JSON.
var maskedTexts = [][]byte{[]byte(redact.Mask), []byte("<contents elided>"), []byte(`\u003ccontents elided\u003e`)}

// outputs returns the outputs of the stack that the engine reported. The engine's events do not have the values of outputs that are secret,
// or have the text of a secret in them: only if there are any, or if events were lost, more processes are needed to read them.
func (o *operation) outputs(ctx context.Context, sum *summary) (map[string]*agentpb.Output, error) {
	if kind := o.kind(); kind != agentpb.OperationKind_OPERATION_KIND_UP && kind != agentpb.OperationKind_OPERATION_KIND_REFRESH {
		return nil, nil
	}
	reported := sum.outputs
	if !sum.complete {
		var err error
		if reported, err = o.storedOutputs(ctx); err != nil {
			return nil, err
		}
	}
	outputs, incomplete := reportedOutputs(reported)
	if incomplete {
		if err := o.readMaskedOutputs(ctx, outputs); err != nil {
			return nil, err
		}
	}
	boundOutputs(outputs)
	return outputs, nil
}

// storedOutputs returns the outputs in the state in the form in which the engine's events have them.
func (o *operation) storedOutputs(ctx context.Context) (map[string]json.RawMessage, error) {
	stored, err := o.printedOutputs(ctx)
	if err == nil && stored == nil {
		err = errors.New("they are too large")
	}
	if err != nil {
		return nil, fmt.Errorf("the resources are up to date, but the outputs cannot be read: %w", err)
	}
	for name, value := range stored {
		if bytes.Contains(value, []byte(`"`+redact.Mask+`"`)) {
			stored[name] = json.RawMessage(`{"` + secretSignatureKey + `":"` + secretSignatureValue + `"}`)
		} else {
			stored[name] = json.RawMessage(o.redactor.String(string(value)))
		}
	}
	return stored, nil
}

// reportedOutputs returns the outputs in the engine's events, and whether the events do not have the values of some: of those that are
// secret, and of those that have something to show instead. An unknown output has no value.
func reportedOutputs(reported map[string]json.RawMessage) (outputs map[string]*agentpb.Output, incomplete bool) {
	outputs = map[string]*agentpb.Output{}
	for name, value := range reported {
		value := compact(value)
		if isUnknownValue(value) {
			outputs[name] = &agentpb.Output{Omitted: true, Unknown: true}
			continue
		}
		output := &agentpb.Output{Value: value, Secret: isSecretValue(value)}
		if !output.Secret && slices.ContainsFunc(maskedTexts, func(text []byte) bool { return bytes.Contains(value, text) }) {
			output.Shown = value
			if len(value) > maxShown {
				output.Shown = []byte(`"` + redact.Mask + `"`)
			}
		}
		outputs[name] = output
		incomplete = incomplete || output.Secret || output.Shown != nil
	}
	return outputs, incomplete
}

// readMaskedOutputs adds the values that the events do not have. If all outputs together are too large to be read, these have no values.
func (o *operation) readMaskedOutputs(ctx context.Context, outputs map[string]*agentpb.Output) error {
	values, err := o.printedOutputs(ctx, "--show-secrets")
	if err != nil {
		return fmt.Errorf("the resources are up to date, but the secret outputs cannot be read: %w", err)
	}
	var secret [][]byte
	for name, output := range outputs {
		if !output.GetSecret() && output.GetShown() == nil {
			continue
		}
		value, ok := values[name]
		if !ok && values != nil {
			return fmt.Errorf("the resources are up to date, but the secret output %s cannot be read", name)
		}
		if output.Value, output.Omitted = compact(value), !ok; output.GetSecret() {
			secret = append(secret, output.Value)
		}
	}
	o.hideOutputs(secret)
	o.runner.outputSecrets.Store(o.stack.Dir, secret)
	return nil
}

// hideOutputs hides the strings and numbers in secret outputs.
func (o *operation) hideOutputs(outputs [][]byte) {
	for _, output := range outputs {
		for leaf := range redact.Leaves(string(output)) {
			o.redactor.Add(leaf)
		}
	}
}

// boundOutputs makes the outputs fit into a message. If values are too large or too many, it omits the largest ones. If even the names are
// too many, it removes outputs. The controller checks the size of the message, and nothing else checks it again.
func boundOutputs(outputs map[string]*agentpb.Output) {
	names := slices.SortedFunc(maps.Keys(outputs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(outputs[a].GetValue()), len(outputs[b].GetValue())), strings.Compare(a, b))
	})
	size := 0
	for at, name := range names {
		output := outputs[name]
		size += len(name)
		switch value := len(output.GetValue()); {
		case at >= agentpb.MaxOutputs || size > agentpb.MaxOutputsSize:
			delete(outputs, name)
		case value > maxOutput || size+value > agentpb.MaxOutputsSize:
			output.Value, output.Omitted = nil, true
		default:
			size += value
		}
	}
}

// printedOutputs reads all outputs; nil when they are too large. They are not logged. Without the flag --show-secrets, the values that are
// secret are masked.
func (o *operation) printedOutputs(ctx context.Context, flags ...string) (map[string]json.RawMessage, error) {
	printed := &limitedBuffer{limit: maxPrintedOutputs}
	res, err := o.helper(ctx, commandTimeout, cli.Invocation{
		Args: append([]string{"stack", "output", "--json", "--stack", o.stack.Name}, flags...), Stdout: printed,
	})
	if err != nil {
		return nil, err
	}
	if res.Code != 0 {
		return nil, classify(res, &summary{})
	}
	if printed.exceeded {
		return nil, nil
	}
	var values map[string]json.RawMessage
	if json.Unmarshal(printed.Bytes(), &values) != nil {
		// The text of the decoder's error could quote a value.
		return nil, fmt.Errorf("pulumi stack output printed something else than a JSON object")
	}
	return values, nil
}

// isSecretValue reports whether there is a secret anywhere in the compact JSON value: then the whole value is secret. The text of a string
// cannot match, because its quotes would be escaped.
func isSecretValue(value []byte) bool {
	return bytes.Contains(value, []byte(`"`+secretSignatureKey+`":"`+secretSignatureValue+`"`))
}

// isUnknownValue reports whether any part of the compact JSON value is unknown.
func isUnknownValue(value []byte) bool {
	return slices.ContainsFunc(unknownValues, func(unknown string) bool { return bytes.Contains(value, []byte(`"`+unknown+`"`)) })
}

// compact returns the document without white space; every digit of a number stays.
func compact(document json.RawMessage) []byte {
	var out bytes.Buffer
	if json.Compact(&out, document) != nil {
		return document
	}
	return out.Bytes()
}

// limitedBuffer keeps at most limit bytes, and notes when there were more.
type limitedBuffer struct {
	bytes.Buffer
	limit    int
	exceeded bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.limit {
		b.exceeded = true
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
