package inputs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/references"
)

// Item returns the configuration value that the input is now. The error is a *MissingError when there is none and no default takes its place, a
// *DeniedError when it must not be used, or an *InvalidError.
func (r *Reader) Item(ctx context.Context, input *autov1alpha1.Input) (*agentpb.ConfigItem, error) {
	item := &agentpb.ConfigItem{Key: input.Key, Path: input.Path, Secret: input.AsSecret || input.Secret != nil}
	usedBy := fmt.Sprintf("input %q", input.Key)
	text, isJSON, err := "", input.JSON, error(nil)
	switch {
	case input.Stack != nil:
		var value []byte
		var secret bool
		value, secret, err = r.output(ctx, input.Stack, usedBy)
		item.Secret = item.Secret || secret
		if err == nil && json.Unmarshal(value, &text) != nil {
			text, isJSON = string(value), true
		}
	case input.Secret != nil:
		text, err = r.Value(ctx, references.Secret, input.Secret.Name, input.Secret.Key, usedBy)
	case input.ConfigMap != nil:
		text, err = r.Value(ctx, references.ConfigMap, input.ConfigMap.Name, input.ConfigMap.Key, usedBy)
	default:
		return nil, Invalidf("%s names neither a stack, a secret nor a configMap", usedBy)
	}
	if missing, ok := errors.AsType[*MissingError](err); ok {
		missing.OfInput = true
		if input.Default != nil && !missing.NotStored {
			text, isJSON = Literal(input.Default.Raw)
			err = nil
		}
	}
	switch {
	case err != nil:
		return nil, err
	case isJSON && !json.Valid([]byte(text)):
		return nil, Invalidf("the value of %s is not JSON", usedBy)
	case isJSON:
		item.Value = &agentpb.ConfigItem_Json{Json: text}
	default:
		item.Value = &agentpb.ConfigItem_Text{Text: text}
	}
	return item, nil
}

// Literal returns a value that is written as JSON: strings as text; all else stays JSON, so that numbers keep their digits.
func Literal(raw []byte) (text string, isJSON bool) {
	if json.Unmarshal(raw, &text) != nil || string(raw) == "null" {
		return string(raw), true
	}
	return text, false
}

// KeysOf returns what the inputs are read from, for Versions.
func KeysOf(namespace string, inputs []autov1alpha1.Input) []references.Key {
	keys := references.OfInputs(namespace, inputs)
	for _, name := range autov1alpha1.StacksOf(namespace, inputs) {
		keys = append(keys, references.Key{Kind: ofStack, Namespace: name.Namespace, Name: name.Name})
	}
	return keys
}

// Others returns the IDs of the values as the digest has them, without those that are read from an object of which there is a version; nil
// when the digest is not one of these inputs.
func Others(namespace string, list []autov1alpha1.Input, digest string, versions []references.Version) map[string]ValueID {
	ids := strings.Split(digest, separator)
	if len(ids) != len(list) {
		return nil
	}
	others := map[string]ValueID{}
	for i := range list {
		if !HaveVersion(namespace, &list[i], versions) {
			others[list[i].Key] = ValueID{Input: list[i].Key, ID: ids[i]}
		}
	}
	return others
}

// HaveVersion reports whether one of the versions is that of the object from which the input is read.
func HaveVersion(namespace string, input *autov1alpha1.Input, versions []references.Version) bool {
	source := KeysOf(namespace, []autov1alpha1.Input{*input})
	return slices.ContainsFunc(versions, func(version references.Version) bool { return slices.Contains(source, version.Key) })
}

// idLength is the length of the hash of a value in hexadecimal digits.
const idLength = 12

// ValueID identifies the value of an input by a hash. Without the key of the hash, nobody can compare it with the hashes of guessed values.
type ValueID struct{ Input, ID string }

// ValueIDs returns the IDs of values, with the key of the hash.
func ValueIDs(key []byte, items []*agentpb.ConfigItem) (ids []ValueID) {
	for _, item := range items {
		mac := hmac.New(sha256.New, key)
		_, isJSON := item.Value.(*agentpb.ConfigItem_Json)
		for _, part := range []string{item.GetKey(), fmt.Sprint(item.GetPath(), item.GetSecret(), isJSON), item.GetText(), item.GetJson()} {
			fmt.Fprintf(mac, "%d:%s", len(part), part)
		}
		ids = append(ids, ValueID{Input: item.GetKey(), ID: hex.EncodeToString(mac.Sum(nil))[:idLength]})
	}
	return ids
}

// separator stands between the IDs in a digest.
const separator = ","

// Digest returns the IDs as a status has them, in their order.
func Digest(ids []ValueID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.ID
	}
	return strings.Join(texts, separator)
}

// Changed returns the names of the inputs whose values are not among those of the digest.
func Changed(ids []ValueID, digest string) (names []string) {
	known := strings.Split(digest, separator)
	for _, id := range ids {
		if !slices.Contains(known, id.ID) {
			names = append(names, id.Input)
		}
	}
	return names
}
