// Command schemas writes JSON Schemas of CustomResourceDefinitions, for editors and for tools such as kubeconform, which know nothing of the
// extensions of Kubernetes: GROUP/KIND_VERSION.json, as the CRDs-catalog has them. A field that the API server would remove is an error.
//
// Usage: schemas DIRECTORY OUTPUT
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: schemas DIRECTORY OUTPUT")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write writes the schemas of all definitions in the directory.
func write(dir, output string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, definition); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.MkdirAll(filepath.Join(output, definition.Spec.Group), 0o755); err != nil {
			return err
		}
		for _, version := range definition.Spec.Versions {
			whole := strict(*version.Schema.OpenAPIV3Schema)
			whole["$schema"] = "http://json-schema.org/draft-07/schema#"
			written, err := json.MarshalIndent(whole, "", "  ")
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			name := strings.ToLower(definition.Spec.Names.Kind) + "_" + version.Name + ".json"
			if err := os.WriteFile(filepath.Join(output, definition.Spec.Group, name), append(written, '\n'), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// schema is a JSON Schema.
type schema = map[string]any

// strict returns the schema without the extensions of Kubernetes.
func strict(props apiextensionsv1.JSONSchemaProps) schema {
	open := props.XPreserveUnknownFields != nil && *props.XPreserveUnknownFields || props.XEmbeddedResource
	out := schema{}
	put := func(key string, value any, isSet bool) {
		if isSet {
			out[key] = value
		}
	}
	put("description", props.Description, props.Description != "")
	put("enum", props.Enum, len(props.Enum) > 0)
	put("pattern", props.Pattern, props.Pattern != "")
	put("required", props.Required, len(props.Required) > 0)
	for key, limit := range map[string]*int64{
		"maxLength": props.MaxLength, "minLength": props.MinLength, "maxItems": props.MaxItems, "minItems": props.MinItems,
		"maxProperties": props.MaxProperties, "minProperties": props.MinProperties,
	} {
		put(key, limit, limit != nil)
	}
	put("minimum", props.Minimum, props.Minimum != nil)
	put("maximum", props.Maximum, props.Maximum != nil)
	put("default", props.Default, props.Default != nil)
	switch {
	case props.XIntOrString:
		out["type"] = []string{"integer", "string"}
	case props.Nullable && props.Type != "":
		out["type"] = []string{props.Type, "null"}
	case props.Type != "":
		out["type"] = props.Type
	}
	if props.Items != nil && props.Items.Schema != nil {
		out["items"] = strict(*props.Items.Schema)
	}
	if len(props.Properties) > 0 {
		properties := schema{}
		for name, property := range props.Properties {
			properties[name] = strict(property)
		}
		out["properties"] = properties
		put("additionalProperties", false, !open)
	}
	if props.AdditionalProperties != nil && props.AdditionalProperties.Schema != nil {
		out["additionalProperties"] = strict(*props.AdditionalProperties.Schema)
	}
	for key, list := range map[string][]apiextensionsv1.JSONSchemaProps{"oneOf": props.OneOf, "anyOf": props.AnyOf, "allOf": props.AllOf} {
		var all []schema
		for i := range list {
			part := strict(list[i])
			delete(part, "additionalProperties") // it restricts, and does not say which fields there are
			all = append(all, part)
		}
		put(key, all, len(all) > 0 && !props.XIntOrString)
	}
	return out
}
