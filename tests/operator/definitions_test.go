package operator_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/operator"
)

// documented are the fields of the operator's definitions, by what they are in: those of the reference, of which nothing may be missing and
// to which nothing may be added by what this controller has more.
var documented = map[string]map[string][]string{
	"stacks.pulumi.com": {
		"spec": {
			"accessTokenSecret", "backend", "branch", "commit", "config", "configRef", "continueResyncOnCommitMatch", "destroyOnFinalize",
			"envRefs", "envSecrets", "environment", "envs", "expectNoRefreshChanges", "fluxSource", "gitAuth", "gitAuthSecret",
			"prerequisites", "preview", "programRef", "projectRepo", "refresh", "repoDir", "resyncFrequencySeconds",
			"retryMaxBackoffDurationSeconds", "retryOnUpdateConflict", "runProgram", "secrets", "secretsProvider", "secretsRef",
			"serviceAccountName", "shallow", "stack", "targetDependents", "targets", "updateTemplate", "useLocalStackOnly",
			"workspaceReclaimPolicy", "workspaceTemplate",
		},
		"spec.gitAuth":              {"accessToken", "basicAuth", "githubApp", "sshAuth"},
		"spec.fluxSource.sourceRef": {"apiVersion", "kind", "name"},
		"spec.workspaceTemplate.spec": {
			"env", "envFrom", "flux", "git", "image", "imagePullPolicy", "local", "podTemplate", "projectInfo", "pulumiLogLevel", "resources",
			"securityProfile", "serviceAccountName", "serviceTemplate", "stacks",
		},
		"spec.workspaceTemplate.spec.git":      {"auth", "dir", "ref", "shallow", "url"},
		"spec.workspaceTemplate.spec.git.auth": {"githubApp", "password", "sshPrivateKey", "token", "username"},
		"spec.updateTemplate.spec": {
			"continueOnError", "expectNoChanges", "message", "parallel", "refresh", "remove", "replace", "runProgram", "stackName", "target",
			"targetDependents", "ttlAfterCompleted", "type", "workspaceName",
		},
	},
	"programs.pulumi.com": {
		"program":                 {"configuration", "outputs", "packages", "resources", "variables"},
		"program.configuration.*": {"default", "type"},
		"program.resources.*":     {"get", "options", "properties", "type"},
		"program.resources.*.get": {"id", "state"},
		"program.resources.*.options": {
			"additionalSecretOutputs", "aliases", "customTimeouts", "deleteBeforeReplace", "dependsOn", "ignoreChanges", "import", "parent",
			"protect", "provider", "providers", "version",
		},
		"program.resources.*.options.customTimeouts": {"create", "delete", "update"},
	},
	"workspaces.auto.pulumi.com": {
		"spec": {
			"env", "envFrom", "flux", "git", "image", "imagePullPolicy", "local", "podTemplate", "projectInfo", "pulumiLogLevel", "resources",
			"securityProfile", "serviceAccountName", "serviceTemplate", "stacks",
		},
		"spec.git":                         {"auth", "dir", "ref", "shallow", "url"},
		"spec.git.auth":                    {"githubApp", "password", "sshPrivateKey", "token", "username"},
		"spec.podTemplate":                 {"metadata", "spec"},
		"spec.stacks[]":                    {"config", "create", "environment", "name", "secretsProvider"},
		"spec.stacks[].config[]":           {"key", "path", "secret", "value", "valueFrom"},
		"spec.stacks[].config[].valueFrom": {"env", "json", "path"},
	},
	"updates.auto.pulumi.com": {
		"spec": {
			"continueOnError", "expectNoChanges", "message", "parallel", "refresh", "remove", "replace", "runProgram", "stackName", "target",
			"targetDependents", "ttlAfterCompleted", "type", "workspaceName",
		},
	},
}

// The definitions that stand for the operator's are ours without what is listed as new: what is left has to be what the operator has.
func TestDefinitionsHaveTheFieldsOfTheOperatorAndNoOthers(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(operator.WriteDefinitions(dir)).To(Succeed())
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(HaveLen(len(documented)))
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		definition := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict(content, definition)).To(Succeed())
		for _, version := range definition.Spec.Versions {
			for path, names := range documented[definition.Name] {
				schema := operator.SchemaAt(version.Schema.OpenAPIV3Schema, path)
				g.Expect(schema).NotTo(BeNil(), "%s %s %s", definition.Name, version.Name, path)
				g.Expect(slices.Sorted(maps.Keys(schema.Properties))).To(Equal(names), "%s %s %s", definition.Name, version.Name, path)
				g.Expect(schema.XPreserveUnknownFields).To(BeNil(), "%s %s %s", definition.Name, version.Name, path)
			}
		}
	}
}
