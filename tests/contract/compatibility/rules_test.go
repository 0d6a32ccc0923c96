package compatibility_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// rule is a rule by which the API server refuses objects.
type rule struct {
	// kind is the kind of the objects, followed by the version if only that version has the rule.
	kind string
	// field is the path in a manifest, with * for the key of a map and [] for an item of a list.
	field string
	// text is the rule as it is in the schema.
	text string
}

// origin is where a rule comes from.
type origin string

const (
	// ofOperator is a rule that is also in the operator's definitions.
	ofOperator origin = "operator"
	// ofKubernetes is a rule of one of Kubernetes' own types, which both systems use in the same place.
	ofKubernetes origin = "Kubernetes"
	// ofNewField is a rule of a field that the operator does not have.
	ofNewField origin = "new field"
	// stricter is a rule of a field that the operator has without the rule.
	stricter origin = "stricter"
)

// originOf classifies the rule with the lists in rows_rules_test.go.
func originOf(r rule) origin {
	switch {
	case slices.ContainsFunc(kubernetesFields, func(field *regexp.Regexp) bool { return field.MatchString(r.field) }):
		return ofKubernetes
	case slices.ContainsFunc(operatorRules, func(known rule) bool {
		return known.kind == r.kind && matches(known.field, r.field) && known.text == r.text
	}):
		return ofOperator
	case slices.ContainsFunc(newFields(r.kind), func(field string) bool {
		return r.field == field || strings.HasPrefix(r.field, field+".") || strings.HasPrefix(r.field, field+"[]")
	}):
		return ofNewField
	}
	return stricter
}

// matches reports whether the pattern, in which {a,b} are alternatives, matches the field.
func matches(pattern, field string) bool {
	if before, rest, found := strings.Cut(pattern, "{"); found {
		alternatives, after, _ := strings.Cut(rest, "}")
		return slices.ContainsFunc(strings.Split(alternatives, ","), func(one string) bool { return matches(before+one+after, field) })
	}
	return pattern == field
}

func TestEveryRuleIsTheOperatorsOrHasItsReason(t *testing.T) {
	g := NewWithT(t)
	rules := rulesOf(t)
	g.Expect(len(rules)).To(BeNumerically(">", 100))
	for _, r := range rules {
		listed := slices.ContainsFunc(stricterRules, func(strict strictRule) bool { return strict.rule == r })
		switch origin := originOf(r); {
		case origin == stricter && !listed:
			t.Errorf("%s: %s: %q is not a rule of the operator: drop it and let the controller answer, or give its reason", r.kind, r.field, r.text)
		case origin != stricter && listed:
			t.Errorf("%s: %s: %q is a rule of %s, and needs no reason", r.kind, r.field, r.text, origin)
		}
	}
	for _, strict := range stricterRules {
		g.Expect(rules).To(ContainElement(strict.rule), "there is no such rule any longer")
		g.Expect(strict.why).NotTo(BeEmpty())
	}
	for _, known := range operatorRules {
		used := slices.ContainsFunc(rules, func(r rule) bool {
			return r.kind == known.kind && matches(known.field, r.field) && r.text == known.text
		})
		g.Expect(used).To(BeTrue(), "no definition has the rule %+v any longer", known)
	}
}

// definitions returns all definitions except those of Approvals and StackRollouts, kinds that the operator does not have.
func definitions(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), "config", "crd", "bases", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	files = slices.DeleteFunc(files, func(file string) bool {
		return strings.HasSuffix(file, "_approvals.yaml") || strings.HasSuffix(file, "_stackrollouts.yaml")
	})
	g.Expect(files).To(HaveLen(4))
	list := make([]apiextensionsv1.CustomResourceDefinition, len(files))
	for i, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yaml.UnmarshalStrict(content, &list[i])).To(Succeed())
	}
	return list
}

// rulesOf returns the rules of all definitions.
func rulesOf(t *testing.T) (rules []rule) {
	for _, crd := range definitions(t) {
		kind := crd.Spec.Names.Kind
		var first []rule
		for _, version := range crd.Spec.Versions {
			schema := *version.Schema.OpenAPIV3Schema
			if len(crd.Spec.Versions) > 1 {
				rules = append(rules, rulesAt(kind+" "+version.Name, "", apiextensionsv1.JSONSchemaProps{XValidations: schema.XValidations})...)
				schema.XValidations = nil
			}
			below := rulesBelow(kind, "", schema)
			if first == nil {
				first = below
				rules = append(rules, below...)
			}
			NewWithT(t).Expect(below).To(Equal(first), "the versions of %s differ", kind)
		}
	}
	return rules
}

// rulesBelow returns the rules of a schema and of all schemas in it.
func rulesBelow(kind, at string, schema apiextensionsv1.JSONSchemaProps) []rule {
	rules := rulesAt(kind, at, schema)
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		rules = append(rules, rulesBelow(kind, strings.TrimPrefix(at+"."+name, "."), schema.Properties[name])...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		rules = append(rules, rulesBelow(kind, at+"[]", *schema.Items.Schema)...)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		rules = append(rules, rulesBelow(kind, at+".*", *schema.AdditionalProperties.Schema)...)
	}
	return rules
}

// rulesAt returns the rules of one schema. The types of fields do not count as rules, because they are the API itself.
func rulesAt(kind, field string, schema apiextensionsv1.JSONSchemaProps) (rules []rule) {
	add := func(format string, arguments ...any) {
		rules = append(rules, rule{kind, field, fmt.Sprintf(format, arguments...)})
	}
	for _, name := range schema.Required {
		add("required: %s", name)
	}
	if len(schema.Enum) > 0 {
		var values []string
		for _, value := range schema.Enum {
			values = append(values, strings.Trim(string(value.Raw), `"`))
		}
		add("one of %s", strings.Join(values, ", "))
	}
	if schema.Pattern != "" {
		add("pattern %s", schema.Pattern)
	}
	if schema.Minimum != nil {
		add("not less than %v", *schema.Minimum)
	}
	if schema.Maximum != nil {
		add("not more than %v", *schema.Maximum)
	}
	for _, bound := range []struct {
		is   *int64
		text string
	}{
		{schema.MinLength, "not shorter than %d"}, {schema.MaxLength, "not longer than %d"},
		{schema.MinItems, "not less than %d items"}, {schema.MaxItems, "not more than %d items"},
		{schema.MinProperties, "not less than %d keys"}, {schema.MaxProperties, "not more than %d keys"},
	} {
		if bound.is != nil {
			add(bound.text, *bound.is)
		}
	}
	if schema.XListType != nil && *schema.XListType != "atomic" {
		add("no two items with the same %s", cmp.Or(strings.Join(schema.XListMapKeys, ", "), "value"))
	}
	for _, validation := range schema.XValidations {
		add("%s", validation.Rule)
	}
	if schema.Not != nil || schema.OneOf != nil || schema.AllOf != nil {
		add("a rule that this test cannot read")
	}
	return rules
}

// rulesPage is the file name of the page about rules, below tablesIn.
const rulesPage = "rules.md"

func rulesText(t *testing.T) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Rules of the API server\n\n%s\n%s\n", generated, strings.TrimSpace(rulesIntroduction))
	text.WriteString("\n| kind | field | rule | why |\n|---|---|---|---|\n")
	for _, strict := range stricterRules {
		fmt.Fprintf(&text, "| %s | %s | `%s` | %s |\n", strict.kind, quoted(cmp.Or(strict.field, "the object")), pages.Cell(strict.text), pages.Cell(strict.why))
	}
	text.WriteString("\n## Rules of new fields\n\n" + newFieldsIntroduction + "\n\n")
	var listed []string
	for _, r := range rulesOf(t) {
		line := fmt.Sprintf("- %s `%s`\n", r.kind, r.field)
		if originOf(r) == ofNewField && !inTemplate(r) && !slices.Contains(listed, line) {
			listed = append(listed, line)
		}
	}
	return text.String() + strings.Join(listed, "")
}

// inTemplate reports whether the rule is on a part of a template. Such a rule is also a rule of the object that is created from the
// template.
func inTemplate(r rule) bool {
	matched, _ := path.Match("spec.*Template.*", r.field)
	return matched || strings.Contains(r.field, "Template.spec.")
}

// TestWideColumnsHaveTheOperatorsPriority checks the priority of columns, by which tools that draw their own tables choose what to show.
func TestWideColumnsHaveTheOperatorsPriority(t *testing.T) {
	g := NewWithT(t)
	wide := map[string][]string{
		"Stack v1": {"Stack", "Last Commit", "Plan", "Changes"}, "Update v1alpha1": {"Type", "Start Time", "End Time"}, "Approval v1alpha1": {"Reason", "Digest"},
	}
	for _, crd := range definitions(t) {
		for _, version := range crd.Spec.Versions {
			var found []string
			for _, column := range version.AdditionalPrinterColumns {
				if column.Priority != 0 {
					g.Expect(column.Priority).To(BeEquivalentTo(10), column.Name)
					found = append(found, column.Name)
				}
			}
			g.Expect(found).To(Equal(wide[crd.Spec.Names.Kind+" "+version.Name]))
		}
	}
}
