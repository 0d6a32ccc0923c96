// Command shrink rewrites generated CustomResourceDefinitions so that they are small, have the intended rules, and admit nothing that a
// client cannot decode:
//
//   - The schema of an embedded pod loses its descriptions. They are most of a definition's size, and `kubectl explain
//     pod.spec` has them. With them, client-side `kubectl apply` fails, because it keeps the whole definition in an annotation.
//   - The workspaceTemplate and the updateTemplate of a Stack lose their descriptions, which `kubectl explain workspace.spec` and
//     `kubectl explain update.spec` have, for the same reason.
//   - The references in the gitAuth of a Stack lose theirs, which spec.envRefs has.
//   - The inputs of the current update and of the plan of a Stack lose theirs, which its last update has.
//   - Conditions and the history of a status lose theirs, which are those of Kubernetes and Flux.
//   - A version that is served and not stored keeps the description of the kind only: its fields are described in the version
//     that is stored.
//   - A pod template is a patch, so it need not have containers.
//   - workspaceTemplate and updateTemplate of a Stack are patches too: nothing in their specification is required, and
//     defaults must not be filled in, since they would override what the Stack says.
//   - An updateTemplate does not choose plans: spec.approval of the Stack does. A workspaceTemplate does not choose a login to Pulumi Cloud:
//     spec.pulumiCloud of the Stack does.
//   - Quantities and values that are a number or a string get the limits that decoding has. A single object that cannot be
//     decoded would stop the controller's watch of all objects of its kind.
//
// Types, formats, enums, list keys and the knowledge of which fields exist stay, so that validation is the same.
//
// Usage: shrink DIRECTORY. Running it again changes nothing.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxSize is the size of a definition, as compact JSON in bytes, that leaves room in the 262144 bytes that the annotations of
// an object may have: client-side apply keeps the definition in one of them.
const maxSize = 244 * 1024

// quantityPattern matches what resource.ParseQuantity accepts. The generated pattern also admits fractions and any number of
// digits in an exponent.
const quantityPattern = `^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$`

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: shrink DIRECTORY")
		os.Exit(2)
	}
	if err := shrinkDirectory(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shrinkDirectory rewrites every definition in the directory.
func shrinkDirectory(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if content, err = shrinkDefinition(content); err != nil {
			return fmt.Errorf("shrink %s: %w", file, err)
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// shrinkDefinition returns the definition, given and returned as YAML, with its schemas rewritten. It fails when the result is
// larger than maxSize.
func shrinkDefinition(content []byte) ([]byte, error) {
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &definition); err != nil {
		return nil, err
	}
	for _, version := range definition.Spec.Versions {
		schema := version.Schema.OpenAPIV3Schema
		rewrite(schema)
		visit(schema, boundIntOrString)
		if !version.Storage {
			dropDescriptionsBelow(schema)
		}
	}
	compact, err := withoutStatus(&definition)
	if err != nil {
		return nil, err
	}
	if len(compact) > maxSize {
		return nil, fmt.Errorf("%d bytes, the limit is %d", len(compact), maxSize)
	}
	result, err := yaml.JSONToYAML(compact)
	if err != nil {
		return nil, err
	}
	return append([]byte("---\n"), result...), nil
}

// withoutStatus returns the definition as compact JSON, without the status that only the API server writes.
func withoutStatus(definition *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	encoded, err := json.Marshal(definition)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := json.Unmarshal(encoded, &object); err != nil {
		return nil, err
	}
	delete(object, "status")
	return json.Marshal(object)
}

// inputs are the fields of an update by which the inputs of a Stack are compared.
var inputs = []string{"generation", "specDigest", "revision", "contentDigest", "referencesDigest", "inputValuesDigest", "inputVersionsDigest"}

// rewrite applies the rules to a schema and everything below it.
func rewrite(schema *apiextensionsv1.JSONSchemaProps) {
	for name, property := range schema.Properties {
		rewrite(&property)
		switch name {
		case "podTemplate":
			updateProperty(&property, "spec", rewritePod)
		case "workspaceTemplate":
			updateProperty(&property, "spec", rewritePatch)
			updateProperty(&property, "spec", dropDescriptionsBelow)
			updateProperty(&property, "spec", dropLogin)
		case "updateTemplate":
			updateProperty(&property, "spec", rewritePatch)
			updateProperty(&property, "spec", dropDescriptionsBelow)
			updateProperty(&property, "spec", dropPlan)
		case "conditions", "history":
			dropDescriptionsBelow(&property)
		case "currentUpdate", "plan":
			for _, name := range inputs {
				updateProperty(&property, name, func(input *apiextensionsv1.JSONSchemaProps) { input.Description = "" })
			}
		case "gitAuth":
			for _, name := range []string{"accessToken", "sshAuth", "basicAuth"} {
				updateProperty(&property, name, dropDescriptionsBelow)
			}
		}
		schema.Properties[name] = property
	}
}

// rewritePod drops the descriptions below an embedded pod and the need for containers.
func rewritePod(pod *apiextensionsv1.JSONSchemaProps) {
	pod.Required = nil
	dropDescriptionsBelow(pod)
}

// rewritePatch drops the required fields and the defaults of a patch.
func rewritePatch(patch *apiextensionsv1.JSONSchemaProps) {
	patch.Required = nil
	for name, property := range patch.Properties {
		property.Default = nil
		patch.Properties[name] = property
	}
}

// dropPlan drops the fields that a template must not set, and the rules about them.
func dropPlan(update *apiextensionsv1.JSONSchemaProps) {
	for _, name := range []string{"plan", "savePlan", "planEnforcement"} {
		delete(update.Properties, name)
	}
	update.XValidations = nil
}

// dropLogin drops a field of a Workspace that the Stack has itself.
func dropLogin(workspace *apiextensionsv1.JSONSchemaProps) {
	delete(workspace.Properties, "pulumiCloud")
}

// updateProperty changes a property of a schema in place. It does nothing if the schema does not have the property.
func updateProperty(schema *apiextensionsv1.JSONSchemaProps, name string, change func(*apiextensionsv1.JSONSchemaProps)) {
	property, ok := schema.Properties[name]
	if !ok {
		return
	}
	change(&property)
	schema.Properties[name] = property
}

// boundIntOrString limits a value that is a number or a string to what can be decoded.
func boundIntOrString(schema *apiextensionsv1.JSONSchemaProps) {
	switch {
	case !schema.XIntOrString:
	case strings.Contains(schema.Pattern, "numkMGTPE"):
		schema.Pattern = quantityPattern
	default:
		schema.Minimum, schema.Maximum = new(float64), new(float64)
		*schema.Minimum, *schema.Maximum = math.MinInt32, math.MaxInt32
	}
}

// dropDescriptionsBelow removes the descriptions of everything below a schema, not its own.
func dropDescriptionsBelow(schema *apiextensionsv1.JSONSchemaProps) {
	description := schema.Description
	visit(schema, func(below *apiextensionsv1.JSONSchemaProps) { below.Description = "" })
	schema.Description = description
}

// visit changes a schema and every schema below it.
func visit(schema *apiextensionsv1.JSONSchemaProps, change func(*apiextensionsv1.JSONSchemaProps)) {
	change(schema)
	for name, property := range schema.Properties {
		visit(&property, change)
		schema.Properties[name] = property
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		visit(schema.Items.Schema, change)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		visit(schema.AdditionalProperties.Schema, change)
	}
}
