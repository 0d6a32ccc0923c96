package update

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
)

// inputReader reads the values for one operation.
type inputReader struct {
	inputs.Reader
	// pods is true when the agent's container has the variables of the Workspace. Then the agent takes values that only a container knows from
	// there.
	pods bool
	budget
}

// config returns the configuration of a stack with the values of Secrets and ConfigMaps as they are now.
func (r *inputReader) config(ctx context.Context, items []autov1alpha1.ConfigItem) (result []*agentpb.ConfigItem, err error) {
	for i := range items {
		item, err := r.configItem(ctx, &items[i])
		if err != nil {
			return nil, err
		}
		result = append(result, item)
	}
	return result, nil
}

func (r *inputReader) configItem(ctx context.Context, from *autov1alpha1.ConfigItem) (*agentpb.ConfigItem, error) {
	item := &agentpb.ConfigItem{Key: from.Key, Path: ptr.Deref(from.Path, false), Secret: ptr.Deref(from.Secret, false)}
	usedBy := fmt.Sprintf("configuration key %q", from.Key)
	source := ptr.Deref(from.ValueFrom, autov1alpha1.ConfigValueFrom{})
	text, isJSON, err := "", source.JSON, error(nil)
	switch {
	case from.Value != nil:
		text, isJSON = inputs.Literal(from.Value.Raw)
	case from.ValueFrom == nil:
		return nil, inputs.Invalidf("%s has neither value nor valueFrom", usedBy)
	case source.SecretKeyRef != nil:
		item.Secret = true
		text, err = r.Value(ctx, references.Secret, source.SecretKeyRef.Name, source.SecretKeyRef.Key, usedBy)
	case source.ConfigMapKeyRef != nil:
		text, err = r.Value(ctx, references.ConfigMap, source.ConfigMapKeyRef.Name, source.ConfigMapKeyRef.Key, usedBy)
	case source.Env != "":
		item.Value, item.ParseJson = &agentpb.ConfigItem_FromEnv{FromEnv: source.Env}, source.JSON
		return item, nil
	case source.Path != "":
		item.Value, item.ParseJson = &agentpb.ConfigItem_FromFile{FromFile: source.Path}, source.JSON
		return item, nil
	default:
		return nil, inputs.Invalidf("valueFrom of %s names no source", usedBy)
	}
	if err != nil {
		return nil, err
	}
	item.Value = &agentpb.ConfigItem_Text{Text: text}
	if isJSON {
		item.Value = &agentpb.ConfigItem_Json{Json: text}
	}
	return item, r.check(item, usedBy)
}

// inputs returns the values of the inputs as they are now. A destroy works from the state, and needs them only if it runs the program.
func (r *inputReader) inputs(ctx context.Context, spec *autov1alpha1.UpdateSpec, list []autov1alpha1.Input) (result []*agentpb.ConfigItem, err error) {
	if spec.Type == autov1alpha1.UpdateTypeDestroy && !ptr.Deref(spec.RunProgram, false) {
		return nil, nil
	}
	for i := range list {
		item, err := r.Item(ctx, &list[i])
		if err == nil {
			err = r.check(item, fmt.Sprintf("input %q", list[i].Key))
		}
		if err != nil {
			return nil, err
		}
		result = append(result, item)
	}
	return result, nil
}

// check counts a value that was read. The error is an *inputs.InvalidError.
func (r *inputReader) check(item *agentpb.ConfigItem, usedBy string) error {
	_, isJSON := item.Value.(*agentpb.ConfigItem_Json)
	text := item.GetText() + item.GetJson() // one of them is empty
	err := r.use(len(item.GetKey()) + len(text))
	if err == nil && isJSON {
		err = r.addStructured(text, usedBy)
	}
	switch {
	case err != nil:
		return err
	case !utf8.ValidString(text):
		return inputs.Invalidf("the value of %s is not UTF-8 text", usedBy)
	case isJSON && !json.Valid([]byte(text)):
		return inputs.Invalidf("the value of %s is not JSON", usedBy)
	}
	return nil
}
