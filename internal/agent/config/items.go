package config

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// maxValueFile bounds a file that a value is read from, in bytes.
	maxValueFile = 1 << 20
	// maxLevels bounds the levels of a path, as the controller bounds those of a value.
	maxLevels = 100
	// maxArrayIndex bounds an index in a path, because missing elements before it are added.
	maxArrayIndex = 10_000
)

// Item is a configuration value of an operation.
type Item struct {
	Key string
	// Path is true when the key is a path into a structured value.
	Path, Secret bool
	Value        string
	// JSON is true when the value is a JSON document; otherwise it is text.
	JSON bool
}

// Resolve returns the items of a request with their values. env is the environment of the operation. Paths of files are relative to dir.
// Each value to hide is passed to hide, even if there is an error: secret values, and the parts of those that are JSON documents.
func Resolve(items []*agentpb.ConfigItem, env map[string]string, dir string, hide func(...string)) (resolved []Item, err error) {
	for _, item := range items {
		one := Item{Key: item.GetKey(), Path: item.GetPath(), Secret: item.GetSecret(), JSON: item.GetParseJson()}
		switch item.GetValue().(type) {
		case *agentpb.ConfigItem_Json:
			one.Value, one.JSON = item.GetJson(), true
		case *agentpb.ConfigItem_FromEnv:
			var known bool
			if one.Value, known = env[item.GetFromEnv()]; !known {
				return nil, fmt.Errorf("config %s: there is no environment variable %s", one.Key, item.GetFromEnv())
			}
		case *agentpb.ConfigItem_FromFile:
			if one.Value, err = ReadValue(dir, item.GetFromFile()); err != nil {
				return nil, fmt.Errorf("config %s: cannot read %s: %w", one.Key, item.GetFromFile(), err)
			}
		default:
			one.Value, one.JSON = item.GetText(), false
		}
		if one.Secret {
			hide(one.Value)
		}
		if one.Secret && one.JSON {
			for leaf := range redact.Leaves(one.Value) {
				hide(leaf)
			}
		}
		if one.JSON && !json.Valid([]byte(one.Value)) {
			// The text of the decoder's error quotes the value.
			return nil, fmt.Errorf("config %s: the value is not valid JSON", one.Key)
		}
		resolved = append(resolved, one)
	}
	return resolved, nil
}

// ReadValue reads a file of the workspace. The path is relative to the directory of the program, or absolute, as for a mounted Secret.
func ReadValue(dir, path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	content, err := file.Read(path, maxValueFile)
	return string(content), file.WithoutPath(err)
}

// Order returns the items in the order in which Set takes them: a whole value comes before the paths into it, which it would overwrite. Order
// rejects keys that cannot be used, two items for one place, because which of them counts would depend on their order, and a path into a
// secret value, of an item or of the file.
func (f *File) Order(items []Item) ([]Item, error) {
	type placed struct {
		Item
		depth int
	}
	var ordered []placed
	seen := map[string]Item{}
	for _, item := range items {
		key, path, err := f.place(item)
		if err != nil {
			return nil, fmt.Errorf("config %s: %w", item.Key, err)
		}
		place := placeOf(key, path)
		if earlier, known := seen[place]; known {
			return nil, fmt.Errorf("config %s and config %s are the same key, %s:%s: set it once", earlier.Key, item.Key, key.Namespace(), path[0])
		}
		seen[place] = item
		ordered = append(ordered, placed{item, len(path)})
	}
	for _, item := range items {
		key, path, _ := f.place(item)
		for depth := 1; depth < len(path); depth++ {
			if outer, known := seen[placeOf(key, path[:depth])]; known && outer.Secret {
				return nil, fmt.Errorf("config %s is inside of config %s, which is one secret value: set each of its values, or only the whole", item.Key, outer.Key)
			}
		}
		// The SDK would replace the secret by a value that has nothing but the item.
		if _, replaced := seen[placeOf(key, path[:1])]; !replaced && f.isInSecret(key, path) {
			return nil, fmt.Errorf("config %s is inside of %s:%s in the stack's configuration file, which is one secret value: "+
				"set the whole, or make each of its values a secret in the file", item.Key, key.Namespace(), path[0])
		}
	}
	slices.SortStableFunc(ordered, func(a, b placed) int { return cmp.Compare(a.depth, b.depth) })
	sorted := make([]Item, len(ordered))
	for i := range ordered {
		sorted[i] = ordered[i].Item
	}
	return sorted, nil
}

// isInSecret reports whether the path leads into a value of the file that is one secret.
func (f *File) isInSecret(key config.Key, path resource.PropertyPath) bool {
	value := f.Values[config.MustMakeKey(key.Namespace(), path[0].(string))]
	return len(path) > 1 && value.Secure() && !value.Object()
}

// placeOf names a place in the configuration.
func placeOf(key config.Key, path resource.PropertyPath) string {
	return key.Namespace() + ":" + path.String()
}

// place returns where the item belongs: its key as the SDK takes it, and the path, which begins with the name of the key. As with
// `pulumi config set --path`, only the first segment of a path has a namespace.
func (f *File) place(item Item) (config.Key, resource.PropertyPath, error) {
	head, tail := item.Key, ""
	if at := strings.IndexAny(head, "[."); item.Path && at > 0 {
		head, tail = head[:at], head[at:]
	}
	key, err := f.parseKey(head)
	if err != nil {
		return key, nil, err
	}
	if !item.Path {
		if key.Name() == "" {
			err = errors.New("the key is empty")
		}
		return key, resource.PropertyPath{key.Name()}, err
	}
	key = config.MustMakeKey(key.Namespace(), key.Name()+tail)
	path, err := resource.ParsePropertyPathStrict(key.Name())
	if err != nil {
		return key, nil, err
	}
	if len(path) == 0 {
		return key, nil, errors.New("the path is empty")
	}
	if name, _ := path[0].(string); name == "" {
		return key, nil, errors.New("the path does not begin with a name")
	}
	if len(path) > maxLevels {
		return key, nil, fmt.Errorf("the path has more than %d levels", maxLevels)
	}
	for _, step := range path[1:] {
		if index, isIndex := step.(int); isIndex && (index < 0 || index > maxArrayIndex) {
			return key, nil, fmt.Errorf("[%d] is out of range", index)
		}
	}
	return key, path, nil
}

// Set puts the value of the item at its place, as `pulumi config set` does. A secret value is encrypted.
func (f *File) Set(ctx context.Context, item Item, encrypter config.Encrypter) error {
	key, path, err := f.place(item)
	if err != nil {
		return err
	}
	value, err := item.plain(len(path) > 1)
	if item.Secret {
		var ciphertext string
		ciphertext, err = encrypter.EncryptValue(ctx, item.Value)
		value = config.NewSecureValue(ciphertext)
	}
	if err != nil {
		return err
	}
	return f.Values.Set(key, value, item.Path)
}

// plain returns the value of an item that is not secret. At the top level every scalar is text, as `pulumi config set` writes it, so that a
// number keeps its digits. Inside a structured value a scalar has its type.
func (i Item) plain(inside bool) (config.Value, error) {
	if !utf8.ValidString(i.Value) {
		return config.Value{}, errors.New("the value is not UTF-8 text")
	}
	if !i.JSON {
		return config.NewValue(i.Value), nil
	}
	text := strings.TrimSpace(i.Value)
	if !inside && !strings.ContainsAny(text[:1], `{["n`) {
		return config.NewValue(text), nil
	}
	var value config.Value
	if value.UnmarshalJSON([]byte(text)) != nil {
		// The text of the decoder's error quotes the value.
		return value, errors.New("a number in the value is out of range")
	}
	switch {
	case value.Secure():
		return value, fmt.Errorf("an object whose only key is %q stands for an encrypted value", "secure")
	case !inside:
		return value, nil
	case text[0] == '{', text[0] == '[':
		return value, errors.New("an object or array cannot be set at a path: give each of its values a path, or the whole key one value")
	case text[0] == '"':
		text, err := value.Value(config.NopDecrypter)
		return config.NewTypedValue(text, config.TypeString), err
	case text == "true", text == "false":
		return config.NewTypedValue(text, config.TypeBool), nil
	case text == "null":
		return value, nil
	case strings.ContainsAny(text, ".eE"):
		return config.NewTypedValue(text, config.TypeFloat), nil
	}
	return config.NewValue(text), nil // an integer, which the SDK recognises
}
