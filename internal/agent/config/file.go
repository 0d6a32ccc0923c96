// Package config writes the configuration of a stack, Pulumi.<stack>.yaml, as the pulumi CLI reads it: the file that came with the source,
// the values of an operation, and how its secrets are encrypted. Pulumi's SDK provides the rules of the CLI for keys, paths and values.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
	"gopkg.in/yaml.v3"
)

// MaxSize bounds Pulumi.yaml and the stack's configuration file, in bytes. An inline YAML program can be large.
const MaxSize = 16 << 20

// Kinds of secrets providers, as the state names them.
const (
	KindPassphrase = "passphrase"
	// KindKeyManagement is a key management service.
	KindKeyManagement = "cloud"
	// KindPulumiCloud is Pulumi Cloud itself.
	KindPulumiCloud = "service"
)

// Settings say how the secrets of a stack are encrypted.
type Settings struct {
	// SecretsProvider and EncryptedKey belong to a key management service, EncryptionSalt to a passphrase.
	SecretsProvider string `yaml:"secretsprovider,omitempty"`
	EncryptedKey    string `yaml:"encryptedkey,omitempty"`
	EncryptionSalt  string `yaml:"encryptionsalt,omitempty"`
}

// UsesKeyManagement reports whether a key management service holds the key. Then only the CLI can encrypt.
func (s Settings) UsesKeyManagement() bool {
	return !slices.Contains([]string{"", "default", "passphrase"}, s.SecretsProvider)
}

// Kind is the kind of secrets provider, as the state names it. It is empty if the settings name none.
func (s Settings) Kind() string {
	switch {
	case s.UsesKeyManagement():
		return KindKeyManagement
	case s.EncryptionSalt != "":
		return KindPassphrase
	}
	return ""
}

// Provider is the secrets provider, as a request names it.
func (s Settings) Provider() string {
	switch s.Kind() {
	case KindKeyManagement:
		return s.SecretsProvider
	case KindPassphrase:
		return "passphrase"
	}
	return "default"
}

// File is a stack's configuration file.
type File struct {
	Settings
	// Environment lists Pulumi ESC environments, or defines one with its imports.
	Environment any
	Values      config.Map
	// Other has the fields that only the CLI uses.
	Other map[string]any

	project string
}

// Parse reads the file of a stack of the project. Empty content is a file without settings. YAML aliases are expanded within the bounds
// of the decoder.
func Parse(content []byte, project string) (*File, error) {
	var source struct {
		Settings    `yaml:",inline"`
		Environment any                     `yaml:"environment"`
		Values      map[string]config.Value `yaml:"config"`
		Other       map[string]any          `yaml:",inline"`
	}
	if err := yaml.Unmarshal(bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")), &source); err != nil {
		return nil, err
	}
	f := &File{Settings: source.Settings, Environment: source.Environment, Other: source.Other, Values: config.Map{}, project: project}
	for _, name := range slices.Sorted(maps.Keys(source.Values)) {
		key, err := f.parseKey(name)
		if err != nil {
			return nil, err
		}
		// A value can have three names: key, project:key and project:config:key. If there are several, project:key counts.
		if _, known := f.Values[key]; !known || name == key.String() {
			f.Values[key] = source.Values[name]
		}
	}
	return f, nil
}

// Encode returns the content of the file.
func (f *File) Encode() ([]byte, error) {
	content := struct {
		Settings    `yaml:",inline"`
		Environment any              `yaml:"environment,omitempty"`
		Values      map[string]value `yaml:"config,omitempty"`
		Other       map[string]any   `yaml:",inline"`
	}{f.Settings, f.Environment, map[string]value{}, f.Other}
	for key, v := range f.Values {
		content.Values[key.String()] = value{v}
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(content), encoder.Close())
	return out.Bytes(), err
}

// value writes the numbers of an object as they are. The SDK reads those from 2^63 to 2^64 and passes them to a program, but writes them rounded.
type value struct{ config.Value }

// MarshalYAML returns what is written.
func (v value) MarshalYAML() (content any, err error) {
	if !v.Object() {
		return v.Value.MarshalYAML()
	}
	text, err := v.Value.Value(config.NopDecrypter)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		return nil, err
	}
	return withNumbers(content), nil
}

// withNumbers makes the numbers in JSON those of YAML, with the same digits.
func withNumbers(content any) any {
	switch content := content.(type) {
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: content.String()}
	case map[string]any:
		for key := range content {
			content[key] = withNumbers(content[key])
		}
	case []any:
		for i := range content {
			content[i] = withNumbers(content[i])
		}
	}
	return content
}

// AddEnvironments adds names to the Pulumi ESC environments that the file imports.
func (f *File) AddEnvironments(names []string) error {
	if len(names) == 0 {
		return nil
	}
	inline, isInline := f.Environment.(map[string]any)
	imports := f.Environment
	if isInline {
		imports = inline["imports"]
	}
	list, isList := imports.([]any)
	if imports != nil && !isList {
		return errors.New("environment is not a list")
	}
	for _, name := range names {
		if !slices.Contains(list, any(name)) {
			list = append(list, name)
		}
	}
	if isInline {
		inline["imports"] = list
	} else {
		f.Environment = list
	}
	return nil
}

// parseKey reads a key as `pulumi config set` does: one without a namespace belongs to the project.
func (f *File) parseKey(name string) (config.Key, error) {
	if !strings.Contains(name, ":") {
		name = f.project + ":" + name
	}
	return config.ParseKey(name)
}
