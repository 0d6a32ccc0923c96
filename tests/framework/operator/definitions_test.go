package operator_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// documented lists the fields of the operator's definitions, from its reference, by the field that contains them. No field may be missing,
// and none that only this controller has may be added.
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

// The definitions that stand in for the operator's are ours without the fields listed as new. The remaining fields must be those of the
// operator.
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

var code = regexp.MustCompile("`([^`]+)`")

// namesIn returns the names that the text formats as code.
func namesIn(text string) (names []string) {
	for _, match := range code.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// section returns a section of the migration guide.
func section(g *WithT, heading string) string {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "migration.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, text, found := strings.Cut(string(content), "\n"+heading+"\n")
	g.Expect(found).To(BeTrue(), heading)
	text, _, _ = strings.Cut(text, "\n#")
	return text
}

// schemaOf reads the schema of the latest version of a definition.
func schemaOf(g *WithT, dir, file string) *apiextensionsv1.JSONSchemaProps {
	content, err := os.ReadFile(filepath.Join(dir, file))
	g.Expect(err).NotTo(HaveOccurred())
	definition := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.UnmarshalStrict(content, definition)).To(Succeed())
	index := slices.IndexFunc(definition.Spec.Versions, func(version apiextensionsv1.CustomResourceDefinitionVersion) bool { return version.Storage })
	g.Expect(index).To(BeNumerically(">=", 0))
	return definition.Spec.Versions[index].Schema.OpenAPIV3Schema
}

func TestGuideListsTheFieldsOfTheStatusThatTheOperatorDoesNotHave(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(operator.WriteDefinitions(dir)).To(Succeed())
	text := section(g, "## Status")
	for row, of := range map[string]struct{ file, path string }{
		"| Stack |":                     {"pulumi.com_stacks.yaml", "status"},
		"| Stack, in `lastUpdate` |":    {"pulumi.com_stacks.yaml", "status.lastUpdate"},
		"| Stack, in `currentUpdate` |": {"pulumi.com_stacks.yaml", "status.currentUpdate"},
		"| Program |":                   {"pulumi.com_programs.yaml", "status"},
		"| Workspace |":                 {"auto.pulumi.com_workspaces.yaml", "status"},
		"| Update |":                    {"auto.pulumi.com_updates.yaml", "status"},
	} {
		_, listed, found := strings.Cut(text, row)
		g.Expect(found).To(BeTrue(), row)
		listed, _, _ = strings.Cut(listed, "\n")
		ours, theirs := operator.SchemaAt(schemaOf(g, controlplane.ProductCRDs(), of.file), of.path), operator.SchemaAt(schemaOf(g, dir, of.file), of.path)
		added := slices.DeleteFunc(slices.Sorted(maps.Keys(ours.Properties)), func(name string) bool {
			_, known := theirs.Properties[name]
			return known
		})
		g.Expect(namesIn(listed)).To(Equal(added), row)
	}
}

func TestGuideNamesEachFieldOfASpecificationThatTheOperatorDoesNotKnow(t *testing.T) {
	g := NewWithT(t)
	fields, programs := section(g, "## Fields"), section(g, "### Programs")
	for kind, definition := range map[string]string{"Stack": newfields.Stacks, "Workspace": newfields.Workspaces, "Update": newfields.Updates} {
		var named []string
		for row := range strings.SplitSeq(fields, "\n") {
			if strings.HasPrefix(row, "| "+kind+" ") {
				for _, name := range namesIn(row) {
					named = append(named, name[strings.LastIndex(name, ".")+1:])
				}
			}
		}
		for _, field := range newfields.Of(definition) {
			if !strings.Contains(field.Path, "Template.") { // the rows of Workspaces and Updates also cover templates
				g.Expect(named).To(ContainElement(field.Path[strings.LastIndex(field.Path, ".")+1:]), "%s %s", kind, field.Path)
			}
		}
	}
	for _, field := range newfields.Of(newfields.Programs) {
		g.Expect(namesIn(programs)).To(ContainElement(field.Path[strings.LastIndex(field.Path, ".")+1:]), field.Path)
	}
}
