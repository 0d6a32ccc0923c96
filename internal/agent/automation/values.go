package automation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// maxValueFile bounds a file that a value is read from, in bytes.
const maxValueFile = 1 << 20

// configItem is a configuration value with its content.
type configItem struct {
	key    string
	path   bool
	secret bool
	value  string
	// json says that value is a JSON document, otherwise it is text.
	json bool
}

// resolveEnvironment returns the variables of the request with their values. dir is where relative files are. secrets are
// the values to hide, also when there is an error.
func resolveEnvironment(variables []*proto.EnvironmentVariable, dir string) (env environment, secrets []string, err error) {
	env = environment{}
	for _, variable := range variables {
		name := variable.GetName()
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, secrets, configInvalid("environment variable %q has no usable name", name)
		}
		var value string
		switch variable.GetValue().(type) {
		case *proto.EnvironmentVariable_FromEnv:
			found, ok := os.LookupEnv(variable.GetFromEnv())
			if !ok {
				return nil, secrets, configInvalid("environment variable %s: the workspace has no variable %s", name, variable.GetFromEnv())
			}
			value = found
		case *proto.EnvironmentVariable_FromFile:
			if value, err = readValue(dir, variable.GetFromFile()); err != nil {
				return nil, secrets, configInvalid("environment variable %s: cannot read %s: %s", name, variable.GetFromFile(), withoutPath(err))
			}
		default:
			value = variable.GetText()
		}
		if variable.GetSecret() {
			secrets = append(secrets, value)
		}
		if strings.Contains(value, "\x00") {
			return nil, secrets, configInvalid("environment variable %s: the value contains a zero byte", name)
		}
		env[name] = value
	}
	return env, secrets, nil
}

// resolveConfig returns the configuration of the request with its values. env is the environment of the operation. secrets
// are the values to hide, also when there is an error.
func resolveConfig(items []*proto.ConfigItem, env environment, dir string) (resolved []configItem, secrets []string, err error) {
	for _, item := range items {
		one := configItem{key: item.GetKey(), path: item.GetPath(), secret: item.GetSecret()}
		switch item.GetValue().(type) {
		case *proto.ConfigItem_Json:
			one.value, one.json = item.GetJson(), true
		case *proto.ConfigItem_FromEnv:
			value, ok := env[item.GetFromEnv()]
			if !ok {
				return nil, secrets, configInvalid("config %s: there is no environment variable %s", one.key, item.GetFromEnv())
			}
			one.value, one.json = value, item.GetParseJson()
		case *proto.ConfigItem_FromFile:
			value, err := readValue(dir, item.GetFromFile())
			if err != nil {
				return nil, secrets, configInvalid("config %s: cannot read %s: %s", one.key, item.GetFromFile(), withoutPath(err))
			}
			one.value, one.json = value, item.GetParseJson()
		default:
			one.value = item.GetText()
		}
		if one.secret {
			secrets = append(secrets, one.value)
		}
		if one.json {
			if !json.Valid([]byte(one.value)) {
				// The text of the decoder's error quotes the value.
				return nil, secrets, configInvalid("config %s: the value is not valid JSON", one.key)
			}
			if one.secret {
				secrets = append(secrets, jsonLeaves([]byte(one.value))...)
			}
		}
		resolved = append(resolved, one)
	}
	return resolved, secrets, nil
}

// readValue reads a file of the workspace: relative to the directory of the program, or anywhere, as a mounted Secret is.
func readValue(dir, path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	content, err := readBounded(path, maxValueFile)
	return string(content), err
}

// jsonLeaves returns the strings and numbers in a JSON document: a program that takes a secret object apart prints these.
func jsonLeaves(document []byte) []string {
	var leaves []string
	decoder := json.NewDecoder(strings.NewReader(string(document)))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil
	}
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case string:
			leaves = append(leaves, value)
		case json.Number:
			leaves = append(leaves, value.String())
		case []any:
			for _, element := range value {
				walk(element)
			}
		case map[string]any:
			for _, element := range value {
				walk(element)
			}
		}
	}
	walk(value)
	return leaves
}
