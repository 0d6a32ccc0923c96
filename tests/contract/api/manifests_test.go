package api_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/render"
	"github.com/stack-controller/stack-controller/tests/tools"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// Every block of YAML in the documentation is a manifest that a reader may apply.
func TestEveryManifestInTheDocumentationIsAccepted(t *testing.T) {
	g := NewWithT(t)
	root := tools.RepositoryRoot()
	// Where Flux is installed, this namespace exists.
	_, err := cluster.Kubectl(t.Context(), "create", "namespace", "flux-system")
	g.Expect(err).NotTo(HaveOccurred())
	blocks := 0
	check := func(path string) {
		content, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		for _, match := range yamlBlock.FindAllStringSubmatch(string(content), -1) {
			blocks++
			_, err := cluster.KubectlInput(t.Context(), match[1], "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred(), "%s:\n%s", path, match[1])
		}
	}
	check(filepath.Join(root, "README.md"))
	g.Expect(filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			check(path)
		}
		return err
	})).To(Succeed())
	g.Expect(blocks).To(BeNumerically(">", 2))
}

// The examples with a fleet and with outputs have tests of their own, in which Flux applies them.
func TestEveryManifestOfTheExamplesIsAccepted(t *testing.T) {
	for _, file := range []string{"in-cluster/stack.yaml", "blue-green/stacks.yaml", "buckets/stack.yaml"} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join(tools.RepositoryRoot(), "docs", "examples", file)
			_, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", path)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestPublishedManifestsAreAccepted(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join("testdata", "manifests", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", file)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestSamplesCanBeAppliedTogether(t *testing.T) {
	samples := filepath.Join(tools.RepositoryRoot(), "config", "samples")
	_, err := cluster.Kubectl(t.Context(), "apply", "--dry-run=server", "-k", samples)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// programObject returns a Program with the body, which may be YAML or JSON.
func programObject(g Gomega, body string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(body), &content)).To(Succeed())
	object := &unstructured.Unstructured{Object: map[string]any{"program": content}}
	object.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.ProgramKind))
	object.SetNamespace("default")
	object.SetGenerateName("program-")
	return object
}

func TestEveryTypeOfConfigurationIsAccepted(t *testing.T) {
	g := NewWithT(t)
	for _, name := range []string{
		"String", "string", "Number", "Integer", "int", "Int", "Boolean", "bool", "Object", "List<Number>", "List<String>", "list<boolean>",
		"List<Object>", "list< int >", "array",
	} {
		g.Expect(stored(t, g, programObject(g, "{configuration: {a: {type: '"+name+"'}}}"))).NotTo(BeNil(), name)
	}
}

// stored returns the Program as the API server would store it, decoded as in the controller.
func stored(t *testing.T, g Gomega, object *unstructured.Unstructured) *pulumiv1.Program {
	g.Expect(apiServer.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
	encoded, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	decoded := &pulumiv1.Program{}
	g.Expect(json.Unmarshal(encoded, decoded)).To(Succeed())
	decoded.Name = "program"
	return decoded
}

func TestProgramsInTheWholeLanguageAreStoredAsTheyAre(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "internal", "source", "render", "testdata", "whole_language.json"))
	g.Expect(err).NotTo(HaveOccurred())
	found := stored(t, g, programObject(g, string(content)))
	g.Expect(found.Program.Verbatim).To(MatchJSON(content))
	_, err = render.Program(found)
	g.Expect(err).NotTo(HaveOccurred())
}

// The Program uses the shapes that the API allowed before it supported the whole language.
func TestProgramsOfTheFormerShapesAreStoredAsTheyAre(t *testing.T) {
	const former = `{
		"configuration": {"a": {"type": "String", "default": "x"}, "b": {"type": "Number"}, "c": {"type": "List<Number>"}, "d": {"type": "List<String>"}},
		"variables": {"v": {"fn::invoke": {"function": "f:g:h"}}},
		"resources": {
			"r": {"type": "a:b:C", "properties": {"p": [1, "${v}"]}, "options": {
				"additionalSecretOutputs": ["s"], "aliases": ["urn"], "customTimeouts": {"create": "1m", "delete": "2m", "update": "3m"},
				"deleteBeforeReplace": true, "dependsOn": ["${g}"], "ignoreChanges": ["i"], "import": "id", "parent": "${g}", "protect": true,
				"provider": "${g}", "providers": {"a": "${g}"}, "version": "1.2.3"}},
			"g": {"type": "a:b:C", "get": {"id": "id", "state": {"s": 1}}}
		},
		"outputs": {"o": "${r.p}"}, "packages": {"p": "source@1.0.0"}
	}`
	g := NewWithT(t)
	found := stored(t, g, programObject(g, former))
	g.Expect(found.Program.Verbatim).To(MatchJSON(former))
	_, err := render.Program(found)
	g.Expect(err).NotTo(HaveOccurred())
}

func TestUnknownFieldsOfAProgramAreKeptForPulumi(t *testing.T) {
	for _, body := range []string{
		"{zebra: 1}",
		"{Variables: 5}",
		"{pulumi: {zebra: 1}}",
		"{configuration: {a: {type: String, zebra: 1}}}",
		"{config: {a: {type: string, zebra: 1}}}",
		"{resources: {a: {type: t, zebra: 1}}}",
		"{resources: {a: {type: t, options: {zebra: 1}}}}",
		"{resources: {a: {type: t, options: {customTimeouts: {zebra: 1}}}}}",
		"{resources: {a: {type: t, get: {id: x, zebra: 1}}}}",
		"{components: {c: {zebra: 1}}}",
		"{components: {c: {inputs: {i: {type: string, zebra: 1}}}}}",
		"{components: {c: {resources: {a: {type: t, options: {zebra: 1}}}}}}",
		"{packages: {p: {source: s, zebra: 1}}}",
		"{plugins: {zebra: []}}",
	} {
		t.Run(body, func(t *testing.T) {
			g := NewWithT(t)
			want, err := yaml.YAMLToJSON([]byte(body))
			g.Expect(err).NotTo(HaveOccurred())
			found := stored(t, g, programObject(g, body))
			g.Expect(found.Program.Verbatim).To(MatchJSON(want))
			_, err = render.Program(found)
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestProgramThatCannotBeOneIsRefused(t *testing.T) {
	for _, tt := range []struct{ body, says string }{
		{"{resources: {a: {}}}", "program.resources.a.type"},
		{"{resources: {a: {type: ''}}}", "program.resources.a.type"},
		{"{resources: {a: {type: t, options: {ignoreChanges: x}}}}", "program.resources.a.options.ignoreChanges"},
		{"{resources: {a: {type: t, options: {retainOnDelete: 'yes'}}}}", "program.resources.a.options.retainOnDelete"},
		{"{resources: {a: {type: t, get: {}}}}", "program.resources.a.get.id"},
		{"{configuration: {a: {type: Strin}}}", "program.configuration.a.type"},
		{"{configuration: {a: {type: 'List<List<String>>'}}}", "program.configuration.a.type"},
		{"{configuration: {a: 5}}", "program.configuration.a"},
		{"{components: {c: 5}}", "program.components.c"},
		{"{plugins: []}", "program.plugins"},
	} {
		t.Run(tt.body, func(t *testing.T) {
			g := NewWithT(t)
			err := apiServer.Create(t.Context(), programObject(g, tt.body), client.DryRunAll)
			g.Expect(err).To(MatchError(ContainSubstring(tt.says)))
		})
	}
}

// A misspelled field reaches the controller, however the manifest is applied.
func TestEveryWayToApplyAProgramKeepsItsUnknownFields(t *testing.T) {
	g := NewWithT(t)
	const manifest = `{"apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {"name": "ways"}, "program": {"resources": {"a": {"type": "t", "optoins": {}}}}}`
	for _, way := range [][]string{
		{"apply", "-f", "-"}, {"apply", "--server-side", "--force-conflicts", "-f", "-"}, {"apply", "--validate=false", "-f", "-"}, {"replace", "-f", "-"},
	} {
		_, err := cluster.KubectlInput(t.Context(), manifest, way...)
		g.Expect(err).NotTo(HaveOccurred())
		kept, err := cluster.Kubectl(t.Context(), "get", "program", "ways", "-o", "jsonpath={.program.resources.a.optoins}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kept).To(Equal("{}"))
	}
}
