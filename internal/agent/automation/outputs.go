package automation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	// secretSignature marks a secret in a serialized property; sdk/go/common/resource/sig has the two parts of it.
	secretSignatureKey   = "4dabf18193072939515e22adb298388d"
	secretSignatureValue = "1b47061264138c4ac30d75fd1eb44270"
	// maxOutputs bounds what `pulumi stack output` may print, in bytes.
	maxOutputs = 16 << 20
)

// outputs returns the outputs of the stack that the engine reported. The engine's events say which are secret, and nothing
// more of those: only when there are some, one more process is needed to read them.
func (o *operation) outputs(ctx context.Context, sum *summary) (map[string]*proto.Output, error) {
	switch o.request.GetKind() {
	case proto.OperationKind_OPERATION_KIND_UP, proto.OperationKind_OPERATION_KIND_REFRESH:
	default:
		return nil, nil
	}
	outputs := map[string]*proto.Output{}
	secret := false
	for name, value := range sum.outputs {
		value := compact(value)
		outputs[name] = &proto.Output{Value: value, Secret: isSecretValue(value)}
		secret = secret || outputs[name].Secret
	}
	if !secret {
		return outputs, nil
	}
	values, err := o.secretOutputs(ctx)
	if err != nil {
		return nil, fmt.Errorf("the resources are up to date, but the secret outputs cannot be read: %w", err)
	}
	var hide []string
	for name, output := range outputs {
		if !output.GetSecret() {
			continue
		}
		value, ok := values[name]
		if !ok {
			return nil, fmt.Errorf("the resources are up to date, but the secret output %s cannot be read", name)
		}
		output.Value = compact(value)
		hide = append(hide, jsonLeaves(value)...)
	}
	o.redactor.Add(hide...)
	o.runner.rememberSecrets(o.stack.key, hide)
	return outputs, nil
}

// secretOutputs reads all outputs in clear. They do not go to the log.
func (o *operation) secretOutputs(ctx context.Context) (map[string]json.RawMessage, error) {
	printed := &limitedBuffer{limit: maxOutputs}
	_, stderr, closeLog := o.logStreams(nil)
	defer closeLog()
	res, err := o.helper(ctx, commandTimeout, invocation{
		args: []string{"stack", "output", "--json", "--show-secrets", "--stack", o.stack.name}, stdout: printed, stderr: stderr,
	})
	if err != nil {
		return nil, err
	}
	if res.code != 0 {
		return nil, classify(res, &summary{})
	}
	if printed.exceeded {
		return nil, fmt.Errorf("the outputs are larger than %d MiB", maxOutputs>>20)
	}
	var values map[string]json.RawMessage
	if json.Unmarshal(printed.Bytes(), &values) != nil {
		// The text of the decoder's error could quote a value.
		return nil, fmt.Errorf("pulumi stack output printed something else than a JSON object")
	}
	return values, nil
}

// isSecretValue tells whether there is a secret anywhere in the compact JSON value: as a whole it is secret then. Inside of a
// string the quotes would be escaped.
func isSecretValue(value []byte) bool {
	return bytes.Contains(value, []byte(`"`+secretSignatureKey+`":"`+secretSignatureValue+`"`))
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
