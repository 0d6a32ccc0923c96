package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/santhosh-tekuri/jsonschema/v5"
	"sigs.k8s.io/yaml"
)

// compiled returns the schemas by their names.
func compiled(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(write(filepath.Join("..", "bases"), dir)).To(Succeed())
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	g.Expect(err).NotTo(HaveOccurred())
	schemas := map[string]*jsonschema.Schema{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		compiler := jsonschema.NewCompiler()
		g.Expect(compiler.AddResource(file, bytes.NewReader(content))).To(Succeed())
		name, _ := filepath.Rel(dir, file)
		schemas[name], err = compiler.Compile(file)
		g.Expect(err).NotTo(HaveOccurred(), name)
	}
	return schemas
}

func TestThereIsASchemaOfEachKindAndVersion(t *testing.T) {
	g := NewWithT(t)
	schemas := compiled(t)
	for _, name := range []string{
		"pulumi.com/stack_v1.json", "pulumi.com/stack_v1alpha1.json", "pulumi.com/program_v1.json",
		"auto.pulumi.com/workspace_v1alpha1.json", "auto.pulumi.com/update_v1alpha1.json", "auto.pulumi.com/approval_v1alpha1.json",
		"auto.pulumi.com/stackrollout_v1alpha1.json",
	} {
		g.Expect(schemas).To(HaveKey(name))
	}
	g.Expect(schemas).To(HaveLen(7))
}

func TestSchemasAcceptTheSamples(t *testing.T) {
	g := NewWithT(t)
	schemas := compiled(t)
	files, err := filepath.Glob(filepath.Join("..", "..", "samples", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	validated := map[string]bool{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var object map[string]any
			g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
			group, version, _ := strings.Cut(apiVersion(object), "/")
			kind, _ := object["kind"].(string)
			name := group + "/" + strings.ToLower(kind) + "_" + version + ".json"
			if schema, known := schemas[name]; known {
				validated[name] = true
				g.Expect(schema.Validate(object)).To(Succeed(), file)
			}
		}
	}
	g.Expect(len(validated)).To(BeNumerically(">=", 4), "%v", validated)
}

func apiVersion(object map[string]any) string {
	text, _ := object["apiVersion"].(string)
	return text
}

func TestSchemasRefuseWhatTheAPIServerRefusesOrRemoves(t *testing.T) {
	stack := compiled(t)["pulumi.com/stack_v1.json"]
	for name, test := range map[string]struct {
		spec string
		ok   bool
	}{
		"complete":                    {"{stack: dev, updateHistoryLimit: 3}", true},
		"free JSON":                   {"{stack: dev, config: {a: {b: [1]}}}", true},
		"port by name":                {"{stack: dev, workspaceTemplate: {spec: {podTemplate: {spec: {containers: [{name: a, livenessProbe: {httpGet: {port: http}}}]}}}}}", true},
		"misspelled":                  {"{stack: dev, fluxsource: {}}", false},
		"misspelled in a template":    {"{stack: dev, workspaceTemplate: {spec: {imag: a}}}", false},
		"wrong type":                  {"{stack: dev, updateHistoryLimit: many}", false},
		"too many":                    {"{stack: dev, updateHistoryLimit: 1000}", false},
		"something that is not there": {"{outputs: [{}]}", false},
	} {
		t.Run(name, func(t *testing.T) {
			var object any
			NewWithT(t).Expect(yaml.Unmarshal([]byte("apiVersion: pulumi.com/v1\nkind: Stack\nmetadata: {name: a}\nspec: "+test.spec), &object)).To(Succeed())
			err := stack.Validate(object)
			if (err == nil) != test.ok {
				t.Error(err)
			}
		})
	}
}
