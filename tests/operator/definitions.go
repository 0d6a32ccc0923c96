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

	"github.com/stack-controller/stack-controller/tests/controlplane"
)

// unknown are the fields of the specification that the operator's definitions do not have, of those that are here.
var unknown = map[string][]string{
	"stacks.pulumi.com": {
		"spec.approval", "spec.dependsOn", "spec.destroyAfterDependents", "spec.drift", "spec.fluxSource.sourceRef.namespace",
		"spec.gitAuth.certSecretRef", "spec.gitAuth.knownHostsRef", "spec.gitAuth.proxySecretRef", "spec.recurseSubmodules",
		"spec.requireVerified", "spec.resyncFrequency", "spec.retryInterval", "spec.sourcePaths", "spec.suspend", "spec.timeout",
		"spec.updateHistoryLimit", "spec.updateOn", "spec.workspaceIdleTimeout",
	},
	"programs.pulumi.com": {
		"program.author", "program.components", "program.config", "program.description", "program.license", "program.plugins", "program.pulumi",
		"program.requiredPulumiVersion", "program.website",
	},
	"updates.auto.pulumi.com": {
		"spec.afterInterruption", "spec.expectNoRefreshChanges", "spec.newStack", "spec.plan", "spec.planEnforcement", "spec.previewOnly",
		"spec.projectInfo", "spec.requireStack", "spec.savePlan", "spec.source", "spec.timeout",
	},
	"workspaces.auto.pulumi.com": {"spec.idleTimeout"},
}

// UnknownFields are the fields of the specification that the operator's definition of this name does not have.
func UnknownFields(definition string) []string { return slices.Clone(unknown[definition]) }

// known are the fields of the status that the operator's definitions have, by the field that they are in.
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

// WriteDefinitions writes definitions of the operator into a directory, a file for each kind: its fields, no rules and no defaults of
// the status. What is dropped by them is what its own drop.
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
			continue // the operator has no such kind
		}
		written++
		definition.Annotations = nil
		for i := range definition.Spec.Versions {
			schema := definition.Spec.Versions[i].Schema.OpenAPIV3Schema
			for _, path := range unknown[definition.Name] {
				if !drop(schema, strings.Split(path, ".")) {
					return fmt.Errorf("%s has no field %s", definition.Name, path)
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
func drop(schema *apiextensionsv1.JSONSchemaProps, path []string) bool {
	property, found := schema.Properties[path[0]]
	switch {
	case !found:
		return false
	case len(path) == 1:
		delete(schema.Properties, path[0])
		return true
	}
	return drop(&property, path[1:])
}

// dropRules removes the expressions, which the operator has none of but for the length of a name.
func dropRules(schema *apiextensionsv1.JSONSchemaProps) {
	schema.XValidations = nil
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
