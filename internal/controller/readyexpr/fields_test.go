package readyexpr

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const canary = "canary-s3cr3t"

// fill writes the canary into every text, key and list of the value.
func fill(value reflect.Value, depth int) {
	if depth > 12 || !value.CanSet() {
		return
	}
	switch out := value.Addr().Interface().(type) {
	case *apiextensionsv1.JSON:
		out.Raw = []byte(`"` + canary + `"`)
		return
	case *metav1.Time:
		*out = metav1.Now()
		return
	}
	switch value.Kind() {
	case reflect.String:
		value.SetString(canary)
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		value.SetInt(7)
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), depth+1)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0), depth+1)
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		element := reflect.New(value.Type().Elem()).Elem()
		fill(element, depth+1)
		value.SetMapIndex(reflect.ValueOf(canary).Convert(value.Type().Key()), element)
	case reflect.Struct:
		for _, field := range value.Fields() {
			fill(field, depth+1)
		}
	}
}

// filled returns a Stack that has the canary everywhere.
func filled() *pulumiv1.Stack {
	stack := &pulumiv1.Stack{}
	fill(reflect.ValueOf(stack).Elem(), 0)
	stack.ManagedFields = nil // They contain only names of fields.
	return stack
}

// fieldsOf returns the fields of content that was decoded from JSON. A list, or a map with keys of the user, counts as one field.
func fieldsOf(prefix string, content any) []string {
	object, isObject := content.(map[string]any)
	if !isObject || object[canary] != nil {
		return []string{prefix}
	}
	var fields []string
	for name, value := range object {
		fields = append(fields, fieldsOf(strings.TrimPrefix(prefix+"."+name, "."), value)...)
	}
	return fields
}

func decoded(t *testing.T, value any) any {
	encoded, err := json.Marshal(value)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var content any
	NewWithT(t).Expect(json.Unmarshal(encoded, &content)).To(Succeed())
	return content
}

// documented returns the fields that the documentation lists.
func documented(t *testing.T) []string {
	text, err := os.ReadFile("../../../docs/spec/v1/stacks.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, table, _ := strings.Cut(string(text), "<!-- fields of readyExpr -->")
	table, _, _ = strings.Cut(table, "<!-- end of the fields -->")
	var fields []string
	for _, match := range regexp.MustCompile("(?m)^\\| (?:`([a-zA-Z.]+)`|\\(top level\\)) \\|(.*?)\\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([a-zA-Z]+)`").FindAllStringSubmatch(match[2], -1) {
			fields = append(fields, strings.TrimPrefix(match[1]+"."+name[1], "."))
		}
	}
	return fields
}

func TestReadyExprReadsTheDocumentedFieldsAndNoOthers(t *testing.T) {
	g := NewWithT(t)
	listed := documented(t)
	g.Expect(listed).NotTo(BeEmpty())
	var paths []string
	for name, value := range exposed("dep", filled(), newAllowance()) {
		paths = append(paths, pathsIn(name, value)...)
	}
	paths = append(paths, annotationsField)
	slices.Sort(paths)
	slices.Sort(listed)
	g.Expect(slices.Compact(paths)).To(Equal(slices.Compact(listed)))
}

// pathsIn returns the paths of the fields that are exposed.
func pathsIn(path string, value any) []string {
	inner, isMap := value.(map[string]any)
	if !isMap || path == outputsField {
		return []string{path}
	}
	var paths []string
	for name := range inner {
		paths = append(paths, pathsIn(path+"."+name, inner[name])...)
	}
	return paths
}

func TestReadyExprCannotReadWhatIsNotListed(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	self, dep := filled(), filled()
	dep.Annotations[corev1.LastAppliedConfigAnnotation] = canary
	allowed := append(slices.Collect(maps.Keys(exposedFields)), outputsField)
	hidden := 0
	for _, field := range fieldsOf("", decoded(t, dep)) {
		if slices.ContainsFunc(allowed, func(exposed string) bool { return strings.HasPrefix(field+".", exposed+".") }) {
			continue
		}
		hidden++
		read := "dep['" + strings.ReplaceAll(field, ".", "']['") + "']"
		for _, expression := range []string{read + " == 'x'", "has(dep." + field + ")", "dep.?" + strings.ReplaceAll(field, ".", ".?") + ".hasValue()", "[1].all(x, string(" + read + ") != '')"} {
			_, err := compile(expression)
			g.Expect(err).To(MatchError(And(ContainSubstring("may read"), ContainSubstring(readyExprDocs))), expression)
		}
		// The check of the expression is there only for the message: an expression that gets past it finds no value.
		parts := strings.Split(field, ".")
		for _, variable := range []string{"[dep][0]", "dyn(dep)", "{'a': dep}.a"} {
			expression := fmt.Sprintf("string(%s['%s']).contains('canary') || true", variable, strings.Join(parts, "']['"))
			g.Expect(Evaluate(t.Context(), expression, self, dep)).To(BeTrue())
			expression = fmt.Sprintf("string(%s['%s']).contains('canary')", variable, strings.Join(parts, "']['"))
			_, err := Evaluate(t.Context(), expression, self, dep)
			g.Expect(err).To(MatchError(ErrEvaluation), expression)
		}
	}
	g.Expect(hidden).To(BeNumerically(">", 50), "of the spec and the metadata")
	for _, expression := range []string{
		"dep.status.conditions[0].message.contains('canary')", "dep.metadata.annotations.size() > 0", "'%s'.format([dep]).contains('" + canary + "-none')",
		"dep.status.conditions.exists(c, has(c.message))",
	} {
		ready, err := Evaluate(t.Context(), expression, self, dep)
		g.Expect(ready).To(BeFalse(), "%s: %v", expression, err)
	}
}

func TestMessagesOfAReadyExprQuoteNoValue(t *testing.T) {
	self, dep := filled(), filled()
	for _, expression := range []string{
		"int(dep.metadata.labels['" + canary[:6] + "' + '-s3cr3t']) == 1", "dep.metadata.labels[dep.status.outputs.all(k, true) ? dep.metadata.name : ''] == ''",
		"[dep.metadata.name].join()[0] == ''", "duration(dep.metadata.name) > duration('1s')", "timestamp(dep.metadata.name) == timestamp(0)", "dep.metadata.name",
		"{}[dep.metadata.name] == 1", "dep.metadata.labels.none == dep.metadata.name", "base64.decode(dep.metadata.name) == b''", "'%d'.format([dep.metadata.name]) == ''",
		"[1][dep.metadata.generation] == 1", "dep.metadata.name.matches('none')", "dep.metadata.name.substring(99) == ''", "[dep].join('') == ''",
	} {
		ready, err := Evaluate(t.Context(), expression, self, dep)
		NewWithT(t).Expect(ready).To(BeFalse(), expression)
		if err != nil {
			NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring(canary), expression)
		}
	}
}

func TestOwnAnnotationsCanBeReadButNotWhatWasApplied(t *testing.T) {
	g := NewWithT(t)
	self := &pulumiv1.Stack{Annotations: map[string]string{"app/version": "2", corev1.LastAppliedConfigAnnotation: canary}}
	dep := &pulumiv1.Stack{Labels: map[string]string{"app/version": "2"}}
	g.Expect(Evaluate(t.Context(), "self.metadata.annotations['app/version'] == dep.metadata.labels['app/version']", self, dep)).To(BeTrue())
	g.Expect(Evaluate(t.Context(), "self.metadata.annotations.size() == 1", self, dep)).To(BeTrue())
	g.Expect(self.Annotations).To(HaveLen(2), "the Stack itself stays as it is")
}

func TestReadyExprOfFluxWorks(t *testing.T) {
	g := NewWithT(t)
	stack := func(version string, ready metav1.ConditionStatus) *pulumiv1.Stack {
		stack := &pulumiv1.Stack{Generation: 3, Labels: map[string]string{"app/version": version}}
		stack.Status.ObservedGeneration = 3
		stack.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: ready, ObservedGeneration: 3}}
		return stack
	}
	for expression, want := range map[string]bool{
		`dep.metadata.labels['app/version'] == self.metadata.labels['app/version'] &&
dep.status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'True') &&
dep.metadata.generation == dep.status.observedGeneration`: true,
		"dep.status.conditions.exists(e, e.type == 'Ready' && e.status == 'False' && e.observedGeneration == dep.metadata.generation)": false,
	} {
		g.Expect(Evaluate(t.Context(), expression, stack("1", "False"), stack("1", "True"))).To(Equal(want), expression)
		g.Expect(Evaluate(t.Context(), expression, stack("1", "False"), stack("2", "False"))).To(Equal(!want), expression)
	}
}
