package automation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
	"gopkg.in/yaml.v3"
)

// maxArrayIndex bounds the index in a path: the elements before it are filled up.
const maxArrayIndex = 10_000

// errStructuredPath keeps what a value contains from depending on two ways to say where it is.
var errStructuredPath = errors.New("an object or array cannot be set at a path: give each of its values a path, or the whole key one value")

// configKey is the place of a configuration value.
type configKey struct {
	config.Key
	// path is what follows the key in a structured value; empty for the value itself.
	path resource.PropertyPath
}

// parseConfigKey reads a key as `pulumi config set` does, with path as with its flag --path: a key without a namespace belongs
// to the project, and only the first segment of a path has a namespace.
func parseConfigKey(key string, isPath bool, project string) (configKey, error) {
	head, tail := key, ""
	if at := strings.IndexAny(key, "[."); isPath && at > 0 {
		head, tail = key[:at], key[at:]
	}
	if !strings.Contains(head, ":") {
		head = project + ":" + head
	}
	parsed, err := config.ParseKey(head)
	if err != nil {
		return configKey{}, err
	}
	if !isPath {
		if parsed.Name() == "" {
			return configKey{}, errors.New("the key is empty")
		}
		return configKey{Key: parsed}, nil
	}
	path, err := resource.ParsePropertyPathStrict(parsed.Name() + tail)
	if err != nil {
		return configKey{}, err
	}
	if len(path) == 0 {
		return configKey{}, errors.New("the path is empty")
	}
	name, ok := path[0].(string)
	if !ok || name == "" {
		return configKey{}, errors.New("the path does not begin with a name")
	}
	return configKey{Key: config.MustMakeKey(parsed.Namespace(), name), path: path[1:]}, nil
}

// set puts the value at its place and creates what is missing on the way there.
func (f *stackFile) set(key configKey, project string, value *yaml.Node) error {
	values, err := f.config()
	if err != nil {
		return err
	}
	// One value can stand in the file under three names.
	name := key.String()
	spellings := []string{name, key.Namespace() + ":config:" + key.Name()}
	if key.Namespace() == project {
		spellings = append(spellings, key.Name())
	}
	var existing *yaml.Node
	for _, spelling := range spellings {
		if found := valueOf(values, spelling); found != nil && existing == nil {
			existing = found
		}
		removeKey(values, spelling)
	}
	if existing == nil || len(key.path) == 0 {
		existing = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	}
	setKey(values, name, existing)
	return setAt(existing, key.path, value, 0)
}

// setAt replaces the node by the value when the path is empty, otherwise the place in it that the path names. The first level
// may replace a plain value by a container, deeper levels must have the right type; so does the CLI.
func setAt(node *yaml.Node, path resource.PropertyPath, value *yaml.Node, depth int) error {
	if len(path) == 0 {
		*node = *value
		return nil
	}
	if isSecure(node) || (node.Kind != yaml.MappingNode && node.Kind != yaml.SequenceNode) {
		if depth > 0 && node.ShortTag() != "!!null" {
			return errors.New("the path leads through a value that is not structured")
		}
		if err := makeContainer(node, path[0]); err != nil {
			return err
		}
	}
	switch step := path[0].(type) {
	case int:
		if node.Kind != yaml.SequenceNode {
			return fmt.Errorf("[%d] does not fit an object", step)
		}
		if step < 0 || step > len(node.Content) {
			return fmt.Errorf("[%d] is out of range", step)
		}
		if step == len(node.Content) {
			node.Content = append(node.Content, nullNode())
		}
		return setAt(node.Content[step], path[1:], value, depth+1)
	case string:
		if node.Kind != yaml.MappingNode {
			return fmt.Errorf("%q does not fit an array", step)
		}
		if step == "secure" && len(path) == 1 && len(node.Content) == 0 && value.ShortTag() == "!!str" {
			return errReserved
		}
		child := valueOf(node, step)
		if child == nil {
			child = nullNode()
			setKey(node, step, child)
		}
		return setAt(child, path[1:], value, depth+1)
	}
	return errors.New("the path is not usable")
}

// makeContainer makes the node an empty object, or an array that has the index.
func makeContainer(node *yaml.Node, step any) error {
	index, ok := step.(int)
	if !ok {
		*node = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		return nil
	}
	if index < 0 || index > maxArrayIndex {
		return fmt.Errorf("[%d] is out of range", index)
	}
	*node = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for range index + 1 {
		node.Content = append(node.Content, nullNode())
	}
	return nil
}

func nullNode() *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}

// coerced returns the node of a text that is set inside a structured value: the CLI makes numbers and truth values of text
// that looks so. Leading zeros keep it text.
func coerced(text string) *yaml.Node {
	if text == "true" || text == "false" {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: text}
	}
	if len(text) > 1 && text[0] == '0' {
		return stringNode(text)
	}
	if number, err := strconv.ParseInt(text, 10, 64); err == nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(number, 10)}
	}
	if number, err := strconv.ParseUint(text, 10, 64); err == nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatUint(number, 10)}
	}
	return stringNode(text)
}

// plainNode is the node of a value that is not secret.
//
// At the top level every scalar is text, as `pulumi config set` writes it: so a number keeps its digits, which the CLI would
// read into a float64 otherwise.
func plainNode(item configItem, key configKey) (*yaml.Node, error) {
	if !utf8.ValidString(item.value) {
		return nil, errors.New("the value is not UTF-8 text")
	}
	if !item.json {
		if len(key.path) == 0 {
			return stringNode(item.value), nil
		}
		return coerced(item.value), nil
	}
	decoder := json.NewDecoder(strings.NewReader(item.value))
	decoder.UseNumber()
	node, err := jsonNode(decoder)
	if err != nil {
		return nil, err
	}
	if len(key.path) == 0 && node.Kind == yaml.ScalarNode && node.Tag != "!!null" {
		return stringNode(node.Value), nil
	}
	if isSecure(node) {
		return nil, errReserved
	}
	if len(key.path) > 0 && node.Kind != yaml.ScalarNode {
		return nil, errStructuredPath
	}
	return node, nil
}

// jsonNode reads the next value of the decoder as a YAML node, in the order of the document and with numbers as they are
// written.
func jsonNode(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, errors.New("the value is not valid JSON")
	}
	switch token := token.(type) {
	case nil:
		return nullNode(), nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(token)}, nil
	case string:
		return stringNode(token), nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: numberTag(token.String()), Value: token.String()}, nil
	}
	if token == json.Delim('[') {
		return jsonArray(decoder)
	}
	return jsonObject(decoder)
}

// numberTag is the type that a YAML parser gives to the number, so that it need not be written.
func numberTag(number string) string {
	if _, err := strconv.ParseInt(number, 10, 64); err == nil {
		return "!!int"
	}
	if _, err := strconv.ParseUint(number, 10, 64); err == nil {
		return "!!int"
	}
	if _, err := strconv.ParseFloat(number, 64); err != nil {
		// Out of range, for which the parser takes it for text.
		return "!!str"
	}
	return "!!float"
}

func jsonArray(decoder *json.Decoder) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for decoder.More() {
		element, err := jsonNode(decoder)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, element)
	}
	_, err := decoder.Token()
	return node, err
}

func jsonObject(decoder *json.Decoder) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, errors.New("the value is not valid JSON")
		}
		value, err := jsonNode(decoder)
		if err != nil {
			return nil, err
		}
		// YAML refuses a key that stands twice; in JSON the last one counts.
		setKey(node, key.(string), value)
	}
	_, err := decoder.Token()
	return node, err
}
