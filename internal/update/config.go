package update

import (
	"context"
	"encoding/json"
	"unicode/utf8"

	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// config returns the configuration of a stack with the values of Secrets and ConfigMaps as they are now.
func (r *references) config(ctx context.Context, items []autov1alpha1.ConfigItem) ([]*proto.ConfigItem, error) {
	var result []*proto.ConfigItem
	for i := range items {
		item := &proto.ConfigItem{
			Key:    items[i].Key,
			Path:   ptr.Deref(items[i].Path, false),
			Secret: ptr.Deref(items[i].Secret, false),
		}
		if err := r.setConfigValue(ctx, item, &items[i]); err != nil {
			return nil, err
		}
		result = append(result, item)
	}
	return result, nil
}

func (r *references) setConfigValue(ctx context.Context, item *proto.ConfigItem, from *autov1alpha1.ConfigItem) error {
	switch {
	case from.Value != nil:
		return setConfigLiteral(item, from.Value.Raw)
	case from.ValueFrom == nil:
		return invalidf("configuration key %q has neither value nor valueFrom", from.Key)
	}
	usedBy := `configuration key "` + from.Key + `"`
	switch source := from.ValueFrom; {
	case source.SecretKeyRef != nil:
		value, err := r.secretKey(ctx, source.SecretKeyRef.Name, source.SecretKeyRef.Key, usedBy)
		if err != nil {
			return err
		}
		item.Secret = true
		return setConfigText(item, value, source.JSON)
	case source.ConfigMapKeyRef != nil:
		value, err := r.configMapKey(ctx, source.ConfigMapKeyRef.Name, source.ConfigMapKeyRef.Key, usedBy)
		if err != nil {
			return err
		}
		return setConfigText(item, value, source.JSON)
	case source.Env != "":
		item.Value, item.ParseJson = &proto.ConfigItem_FromEnv{FromEnv: source.Env}, source.JSON
		return nil
	case source.Path != "":
		item.Value, item.ParseJson = &proto.ConfigItem_FromFile{FromFile: source.Path}, source.JSON
		return nil
	}
	return invalidf("valueFrom of %s names no source", usedBy)
}

// setConfigLiteral takes over a value of the spec. Strings are text; all else stays JSON, so that numbers keep their digits.
func setConfigLiteral(item *proto.ConfigItem, raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err == nil && string(raw) != "null" {
		return setConfigText(item, text, false)
	}
	return setConfigText(item, string(raw), true)
}

func setConfigText(item *proto.ConfigItem, value string, isJSON bool) error {
	switch {
	case !utf8.ValidString(value):
		return invalidf("the value of configuration key %q is not UTF-8 text", item.GetKey())
	case isJSON && !json.Valid([]byte(value)):
		return invalidf("the value of configuration key %q is not JSON", item.GetKey())
	case isJSON:
		item.Value = &proto.ConfigItem_Json{Json: value}
	default:
		item.Value = &proto.ConfigItem_Text{Text: value}
	}
	return nil
}
