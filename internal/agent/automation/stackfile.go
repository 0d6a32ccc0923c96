package automation

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxNodes bounds a configuration file after its YAML aliases are expanded.
const maxNodes = 200_000

// cryptoSettings say how the secrets of a stack are encrypted; they stand in the stack's configuration file.
type cryptoSettings struct {
	// SecretsProvider and EncryptedKey belong to a key management service, EncryptionSalt to a passphrase.
	SecretsProvider string `yaml:"secretsprovider"`
	EncryptedKey    string `yaml:"encryptedkey"`
	EncryptionSalt  string `yaml:"encryptionsalt"`
}

func (c cryptoSettings) empty() bool {
	return c.EncryptionSalt == "" && !c.usesService()
}

// usesService tells whether only the CLI can encrypt: the key is not derived from a passphrase.
func (c cryptoSettings) usesService() bool {
	switch c.SecretsProvider {
	case "", "default", "passphrase":
		return false
	}
	return true
}

// kind is the kind of secrets provider, as the state names it; empty when the settings name none.
func (c cryptoSettings) kind() string {
	switch {
	case c.usesService():
		return kindService
	case c.EncryptionSalt != "":
		return kindPassphrase
	}
	return ""
}

// provider is the secrets provider, as a request names it.
func (c cryptoSettings) provider() string {
	switch c.kind() {
	case kindService:
		return c.SecretsProvider
	case kindPassphrase:
		return "passphrase"
	}
	return "default"
}

// stackFile is a stack's configuration file, Pulumi.<stack>.yaml. It is edited as a tree of YAML nodes, so that what we do
// not touch stays as it was written, and numbers keep their digits.
type stackFile struct {
	root *yaml.Node
}

// parseStackFile reads the file; empty content is a file without settings.
func parseStackFile(content []byte) (*stackFile, error) {
	root, err := parseYAML(content)
	if err != nil {
		return nil, err
	}
	if root == nil {
		return &stackFile{root: &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}}, nil
	}
	budget := maxNodes
	// A value that is replaced may carry the anchor of another one.
	if root, err = expanded(root, &budget); err != nil {
		return nil, err
	}
	return &stackFile{root: root}, nil
}

// expanded returns a copy of the node without aliases.
func expanded(node *yaml.Node, budget *int) (*yaml.Node, error) {
	if *budget--; *budget < 0 {
		return nil, errors.New("its YAML aliases expand to too much")
	}
	if node.Kind == yaml.AliasNode {
		return expanded(node.Alias, budget)
	}
	result := *node
	result.Anchor, result.Content = "", nil
	for _, child := range node.Content {
		copied, err := expanded(child, budget)
		if err != nil {
			return nil, err
		}
		result.Content = append(result.Content, copied)
	}
	if result.Kind == yaml.MappingNode {
		dropCommentsOfNothing(result.Content)
	}
	return &result, nil
}

// dropCommentsOfNothing drops the comments between a key and a value that is not there: in front of the value that takes its place
// they would hide it.
func dropCommentsOfNothing(pairs []*yaml.Node) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if key, value := pairs[i], pairs[i+1]; value.ShortTag() == "!!null" {
			key.LineComment, key.FootComment = "", ""
			value.HeadComment, value.LineComment, value.FootComment = "", "", ""
		}
	}
}

func (f *stackFile) encode() ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(f.root); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// crypto returns the settings in the file.
func (f *stackFile) crypto() (cryptoSettings, error) {
	var settings cryptoSettings
	err := f.root.Decode(&settings)
	return settings, err
}

// setCrypto replaces the settings in the file.
func (f *stackFile) setCrypto(settings cryptoSettings) {
	for key, value := range map[string]string{
		"secretsprovider": settings.SecretsProvider,
		"encryptedkey":    settings.EncryptedKey,
		"encryptionsalt":  settings.EncryptionSalt,
	} {
		removeKey(f.root, key)
		if value != "" {
			setKey(f.root, key, stringNode(value))
		}
	}
}

// addEnvironments appends to the Pulumi ESC environments that the file imports.
func (f *stackFile) addEnvironments(names []string) error {
	if len(names) == 0 {
		return nil
	}
	list := valueOf(f.root, "environment")
	if list != nil && list.Kind == yaml.MappingNode {
		// An environment that is defined in place has its imports one level down.
		inner := valueOf(list, "imports")
		if inner == nil {
			inner = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			setKey(list, "imports", inner)
		}
		list = inner
	}
	switch {
	case list == nil || list.Tag == "!!null":
		list = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		setKey(f.root, "environment", list)
	case list.Kind != yaml.SequenceNode:
		return errors.New("environment is not a list")
	}
	for _, name := range names {
		if !containsScalar(list, name) {
			list.Content = append(list.Content, stringNode(name))
		}
	}
	return nil
}

// config returns the mapping of the configuration values, which it creates when there is none.
func (f *stackFile) config() (*yaml.Node, error) {
	config := valueOf(f.root, "config")
	if config == nil || config.Tag == "!!null" {
		config = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		setKey(f.root, "config", config)
	}
	if config.Kind != yaml.MappingNode {
		return nil, errors.New("config is not a mapping")
	}
	return config, nil
}

// valueOf returns the value of the key, nil when the mapping does not have it.
func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func setKey(mapping *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content[i+1] = value
			return
		}
	}
	mapping.Content = append(mapping.Content, stringNode(key), value)
}

func removeKey(mapping *yaml.Node, key string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content = append(mapping.Content[:i], mapping.Content[i+2:]...)
			return
		}
	}
}

func containsScalar(sequence *yaml.Node, value string) bool {
	for _, element := range sequence.Content {
		if element.Kind == yaml.ScalarNode && element.Value == value {
			return true
		}
	}
	return false
}

// oldBool is what YAML 1.1 reads as a truth value.
var oldBool = regexp.MustCompile(`^(?i:y|n|yes|no|on|off)$`)

// stringNode is the text, quoted when it would read as something else.
func stringNode(text string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if oldBool.MatchString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		node.Style = yaml.DoubleQuotedStyle
	}
	return node
}

// secureNode is an encrypted value.
func secureNode(ciphertext string) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{stringNode("secure"), stringNode(ciphertext)}}
}

// isSecure tells whether the CLI takes the node for an encrypted value.
func isSecure(node *yaml.Node) bool {
	return node.Kind == yaml.MappingNode && len(node.Content) == 2 && node.Content[0].Value == "secure" &&
		node.Content[1].Kind == yaml.ScalarNode && node.Content[1].ShortTag() == "!!str"
}

// errReserved is what keeps a value from being taken for an encrypted one.
var errReserved = fmt.Errorf("an object whose only key is %q stands for an encrypted value", "secure")
