package automation

import (
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxYAMLDepth bounds how deep a program is looked into.
const maxYAMLDepth = 200

// packageUses returns the packages that Pulumi YAML programs use, each with the version and the place that a use of it asks
// for, sorted. Where in the document a type stands does not matter: one too many costs an installation, no more.
func packageUses(documents ...*yaml.Node) []string {
	uses := map[string]struct{}{}
	for _, document := range documents {
		collectUses(document, uses, maxYAMLDepth)
	}
	return slices.Sorted(maps.Keys(uses))
}

// collectUses does not go into what aliases stand for: that is visited where it is defined.
func collectUses(node *yaml.Node, uses map[string]struct{}, depth int) {
	if depth == 0 {
		return
	}
	if node.Kind == yaml.MappingNode {
		for _, key := range []string{"type", "function", "Function"} {
			if value := resolvedValueOf(node, key); value != nil && value.Kind == yaml.ScalarNode {
				addUse(uses, value.Value, node)
			}
		}
		for i := 0; i+1 < len(node.Content); i += 2 {
			// The short form of an invocation: fn::aws:getRegion.
			if name, ok := cutPrefixFold(resolved(node.Content[i]).Value, "fn::"); ok {
				addUse(uses, name, resolved(node.Content[i+1]))
			}
		}
	}
	for _, child := range node.Content {
		collectUses(child, uses, depth-1)
	}
}

// addUse adds the package of a token like "aws:s3:Bucket" or "pulumi:providers:aws", with the options that stand beside it.
func addUse(uses map[string]struct{}, token string, context *yaml.Node) {
	name, rest, ok := strings.Cut(token, ":")
	if !ok || name == "" {
		return
	}
	if name == "pulumi" {
		// The engine itself has these, except for providers.
		if name, ok = strings.CutPrefix(rest, "providers:"); !ok {
			return
		}
	}
	use := name
	if context.Kind == yaml.MappingNode {
		for _, holder := range []string{"options", "Options"} {
			options := resolvedValueOf(context, holder)
			if options == nil || options.Kind != yaml.MappingNode {
				continue
			}
			for _, key := range []string{"version", "pluginDownloadURL"} {
				if value := resolvedValueOf(options, key); value != nil {
					use += " " + key + "=" + value.Value
				}
			}
		}
	}
	uses[use] = struct{}{}
}

// resolved returns what an alias stands for, and everything else as it is.
func resolved(node *yaml.Node) *yaml.Node {
	if node != nil && node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// resolvedValueOf returns the value of the key, or what it is an alias for; nil when the mapping does not have it.
func resolvedValueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if resolved(mapping.Content[i]).Value == key {
			return resolved(mapping.Content[i+1])
		}
	}
	return nil
}

func cutPrefixFold(text, prefix string) (string, bool) {
	if len(text) < len(prefix) || !strings.EqualFold(text[:len(prefix)], prefix) {
		return "", false
	}
	return text[len(prefix):], true
}
