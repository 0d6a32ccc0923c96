package operator

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// known lists the fields of the status in the operator's definitions, by the field that contains them.
var known = map[string]map[string][]string{
	"stacks.pulumi.com": {
		"":              {"conditions", "currentUpdate", "lastUpdate", "observedGeneration", "observedReconcileRequest", "outputs", "projectInfo"},
		"currentUpdate": {"commit", "generation", "name", "reconcileRequest"},
		"lastUpdate": {"failures", "generation", "lastAttemptedCommit", "lastResyncTime", "lastSuccessfulCommit", "message", "name", "permalink",
			"reconcileRequest", "state", "type"},
	},
	"programs.pulumi.com":        {"": {"artifact", "observedGeneration"}},
	"workspaces.auto.pulumi.com": {"": {"address", "conditions", "observedGeneration", "pulumiVersion"}},
	"updates.auto.pulumi.com":    {"": {"conditions", "endTime", "message", "observedGeneration", "outputs", "permalink", "projectInfo", "startTime"}},
}

// WriteDefinitions writes definitions like the operator's into a directory, one file for each kind. They have the operator's fields,
// without rules and without defaults of the status. They drop the same fields from an object as the operator's definitions.
func WriteDefinitions(dir string) error {
	files, err := filepath.Glob(filepath.Join(controlplane.ProductCRDs(), "*.yaml"))
	if err != nil {
		return err
	}
	written := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, definition); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if known[definition.Name] == nil {
			continue // the operator does not have this kind
		}
		written++
		definition.Annotations = nil
		for i := range definition.Spec.Versions {
			schema := definition.Spec.Versions[i].Schema.OpenAPIV3Schema
			for _, field := range newfields.Of(definition.Name) {
				if !drop(schema, field.Path) {
					return fmt.Errorf("%s has no field %s", definition.Name, field.Path)
				}
			}
			status := schema.Properties["status"]
			status.Default = nil
			for field, names := range known[definition.Name] {
				properties := status.Properties
				if field != "" {
					properties = properties[field].Properties
				}
				maps.DeleteFunc(properties, func(name string, _ apiextensionsv1.JSONSchemaProps) bool { return !slices.Contains(names, name) })
			}
			schema.Properties["status"] = status
			dropRules(schema)
		}
		if content, err = yaml.Marshal(definition); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), content, 0o644); err != nil {
			return err
		}
	}
	if written != len(known) {
		return fmt.Errorf("found %d definitions of the operator's kinds", written)
	}
	return nil
}

// drop removes the field at the path.
func drop(schema *apiextensionsv1.JSONSchemaProps, path string) bool {
	parent, name := "", path
	if last := strings.LastIndex(path, "."); last >= 0 {
		parent, name = path[:last], path[last+1:]
	}
	schema = SchemaAt(schema, parent)
	if schema == nil {
		return false
	}
	_, found := schema.Properties[name]
	delete(schema.Properties, name)
	return found
}

// SchemaAt returns the schema at the path in a manifest, with * for the key of a map and [] for an item of a list, or nil if there is none.
// It shares its maps with the given schema.
func SchemaAt(schema *apiextensionsv1.JSONSchemaProps, path string) *apiextensionsv1.JSONSchemaProps {
	if path == "" {
		return schema
	}
	step, rest, _ := strings.Cut(path, ".")
	if step == "*" {
		if schema.AdditionalProperties == nil || schema.AdditionalProperties.Schema == nil {
			return nil
		}
		return SchemaAt(schema.AdditionalProperties.Schema, rest)
	}
	name, isList := strings.CutSuffix(step, "[]")
	property, found := schema.Properties[name]
	switch {
	case !found, isList && (property.Items == nil || property.Items.Schema == nil):
		return nil
	case isList:
		return SchemaAt(property.Items.Schema, rest)
	}
	return SchemaAt(&property, rest)
}

// dropRules removes the validation expressions, of which the operator has only one, for the length of a name. It also stops preserving
// unknown fields where the schema has fields, as in a Program.
func dropRules(schema *apiextensionsv1.JSONSchemaProps) {
	schema.XValidations = nil
	if len(schema.Properties) > 0 {
		schema.XPreserveUnknownFields = nil
	}
	for name, property := range schema.Properties {
		dropRules(&property)
		schema.Properties[name] = property
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		dropRules(schema.Items.Schema)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		dropRules(schema.AdditionalProperties.Schema)
	}
}
