package compatibility_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// schemaField is a field of a definition.
type schemaField struct {
	// path is that in a manifest, with * for the key of a map and [] for an item of a list.
	path   string
	schema apiextensionsv1.JSONSchemaProps
}

// fieldsOf lists the fields below one of the top-level fields of version v1 of the definition, sorted.
func fieldsOf(t *testing.T, definition, top string) []schemaField {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "crd", "bases", definition))
	g.Expect(err).NotTo(HaveOccurred())
	var crd apiextensionsv1.CustomResourceDefinition
	g.Expect(yaml.UnmarshalStrict(content, &crd)).To(Succeed())
	index := slices.IndexFunc(crd.Spec.Versions, func(version apiextensionsv1.CustomResourceDefinitionVersion) bool { return version.Name == "v1" })
	g.Expect(index).To(BeNumerically(">=", 0))
	return walk(top, crd.Spec.Versions[index].Schema.OpenAPIV3Schema.Properties[top])
}

// walk lists the fields below a schema. What references and templates are made of is not the business of each place where
// one stands.
func walk(path string, schema apiextensionsv1.JSONSchemaProps) (fields []schemaField) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		below := path + "." + name
		fields = append(fields, schemaField{below, property})
		if isReference(property) || strings.HasSuffix(name, "Template") || name == "conditions" {
			continue
		}
		fields = append(fields, walk(below, property)...)
		if items := property.AdditionalProperties; items != nil && items.Schema != nil && !isReference(*items.Schema) {
			fields = append(fields, walk(below+".*", *items.Schema)...)
		}
		if property.Items != nil && property.Items.Schema != nil {
			fields = append(fields, walk(below+"[]", *property.Items.Schema)...)
		}
	}
	return fields
}

// isReference tells the schema of a ResourceRef.
func isReference(schema apiextensionsv1.JSONSchemaProps) bool {
	_, literal := schema.Properties["literal"]
	_, filesystem := schema.Properties["filesystem"]
	return literal && filesystem
}

// wrongValues are values of another type than the one of the key.
var wrongValues = map[string]any{
	"string":  map[string]any{"an": "object"},
	"boolean": "yes",
	"integer": "many",
	"array":   "one",
	"object":  "text",
}

func TestFieldsOfAnotherTypeAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct{ definition, kind, top string }{
		{"pulumi.com_stacks.yaml", "Stack", "spec"},
		{"pulumi.com_programs.yaml", "Program", "program"},
	} {
		fields := fieldsOf(t, kind.definition, kind.top)
		NewWithT(t).Expect(len(fields)).To(BeNumerically(">", 20))
		for _, field := range fields {
			wrong, typed := wrongValues[field.schema.Type]
			if !typed {
				continue // any value is right
			}
			t.Run(field.path, func(t *testing.T) {
				t.Parallel()
				g := NewWithT(t)
				object := &unstructured.Unstructured{Object: nested(strings.Split(field.path, "."), wrong).(map[string]any)}
				object.SetAPIVersion("pulumi.com/v1")
				object.SetKind(kind.kind)
				object.SetName("wrong")
				object.SetNamespace("default")
				content, err := object.MarshalJSON()
				g.Expect(err).NotTo(HaveOccurred())
				// Server-side apply and client-side apply refuse it with different words.
				said := strings.NewReplacer(".*", ".key", "[]", "[0]").Replace(field.path)
				create := system.Client.Create(t.Context(), object.DeepCopy(), client.DryRunAll, client.FieldValidation("Strict"))
				g.Expect(create).To(MatchError(ContainSubstring(said)))
				apply := system.Client.Patch(t.Context(), object, client.RawPatch(types.ApplyPatchType, content),
					client.FieldOwner(user), client.DryRunAll, client.FieldValidation("Strict"))
				g.Expect(apply).To(MatchError(ContainSubstring("." + strings.Trim(said[strings.LastIndex(said, ".")+1:], "[0]"))))
			})
		}
	}
}

// nested is an object with the value at the path.
func nested(path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	name, isList := strings.CutSuffix(path[0], "[]")
	inner := nested(path[1:], value)
	if isList {
		inner = []any{inner}
	}
	if name == "*" {
		name = "key"
	}
	return map[string]any{name: inner}
}
