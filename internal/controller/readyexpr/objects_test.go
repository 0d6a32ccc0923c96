package readyexpr

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/tests/framework/allocation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// filledObject returns an object that has the canary everywhere, also in the message of its condition, which is never kept.
func filledObject() *objectwatch.Object {
	object := &objectwatch.Object{}
	fill(reflect.ValueOf(object).Elem(), 0)
	return object
}

func TestReadyExprReadsTheDocumentedFieldsOfAnObjectAndNoOthers(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile("../../../docs/spec/v1/stacks.md")
	g.Expect(err).NotTo(HaveOccurred())
	_, list, found := strings.Cut(string(text), "<!-- fields of readyExpr of other kinds -->")
	g.Expect(found).To(BeTrue())
	list, _, _ = strings.Cut(list, "<!-- end of the fields -->")
	var listed, paths []string
	for _, match := range regexp.MustCompile("(?m)^\\| (?:`([a-zA-Z.]+)`|\\(top level\\)) \\|(.*?)\\|").FindAllStringSubmatch(list, -1) {
		for _, name := range regexp.MustCompile("`([a-zA-Z]+)`").FindAllStringSubmatch(match[2], -1) {
			listed = append(listed, strings.TrimPrefix(match[1]+"."+name[1], "."))
		}
	}
	for name, value := range exposedObject(filledObject()) {
		paths = append(paths, pathsIn(name, value)...)
	}
	slices.Sort(paths)
	slices.Sort(listed)
	g.Expect(paths).To(Equal(listed))
}

func TestReadyExprCannotReadWhatIsHiddenOfAnObject(t *testing.T) {
	self, dep := filled(), filledObject()
	for _, field := range []string{
		"spec", "spec.path", "data", "metadata.annotations", "metadata.ownerReferences", "status.lastAppliedRevision", "status.outputs", "status.history",
		"metadata.finalizers", "status.deployed", "spec.suspend",
	} {
		g := NewWithT(t)
		for _, expression := range []string{"has(dep." + field + ")", "dep['" + strings.ReplaceAll(field, ".", "']['") + "'] == 'x'"} {
			g.Expect(CheckObject(expression)).To(MatchError(And(ContainSubstring("may read of an object"), ContainSubstring(readyExprDocs))), expression)
		}
		// The check of the expression is there only for the message: an expression that gets past it finds no value.
		for _, variable := range []string{"[dep][0]", "dyn(dep)", "{'a': dep}.a"} {
			expression := fmt.Sprintf("string(%s['%s']) != 'x'", variable, strings.ReplaceAll(field, ".", "']['"))
			_, err := EvaluateObject(t.Context(), expression, self, dep)
			g.Expect(err).To(MatchError(ErrEvaluation), expression)
		}
	}
	for _, expression := range []string{"dep.status.conditions.exists(c, has(c.message))", "'%s'.format([dep.status]).contains('message')"} {
		ready, _ := EvaluateObject(t.Context(), expression, self, dep)
		NewWithT(t).Expect(ready).To(BeFalse(), expression)
	}
	// What self shows does not become less, and what dep may be asked of a Stack is another program.
	g := NewWithT(t)
	g.Expect(CheckObject("self.spec.stack == dep.metadata.name && has(self.metadata.annotations)")).To(Succeed())
	g.Expect(Check("dep.spec.suspend == true")).To(Succeed())
	g.Expect(CheckObject("dep.spec.suspend == true")).NotTo(Succeed())
	g.Expect(Check("dep.spec.suspend == true")).To(Succeed())
	g.Expect(CheckObject("dep == dep && 'status' in dep")).To(Succeed())
}

func TestReadyExprOfFluxWorksForAnObject(t *testing.T) {
	g := NewWithT(t)
	object := &objectwatch.Object{
		APIVersion: "helm.toolkit.fluxcd.io/v2", Kind: "HelmRelease", Generation: 3, HasObservedGeneration: true, ObservedGeneration: 3,
		Conditions: []metav1.Condition{{Type: "Ready", Status: "False", Reason: "UpgradeFailed"}, {Type: "Released", Status: "True"}},
	}
	for expression, want := range map[string]bool{
		"dep.status.observedGeneration == dep.metadata.generation": true, "dep.kind == 'HelmRelease' && dep.apiVersion.endsWith('/v2')": true,
		"dep.status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'True')":  false,
		"dep.status.conditions.exists(e, e.type == 'Ready' && e.reason.endsWith('led'))": true, "has(dep.metadata.deletionTimestamp)": false,
	} {
		g.Expect(EvaluateObject(t.Context(), expression, &pulumiv1.Stack{}, object)).To(Equal(want), expression)
	}
	object.HasObservedGeneration = false
	g.Expect(EvaluateObject(t.Context(), "has(dep.status.observedGeneration)", &pulumiv1.Stack{}, object)).To(BeFalse())
}

func TestReadyExprOfAnObjectHasTheSameBounds(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	self, _ := largestStacks()
	dep := &objectwatch.Object{Labels: map[string]string{}, Conditions: make([]metav1.Condition, maxExposedConditions)}
	for n := range maxExposedEntries {
		dep.Labels[fmt.Sprint("l", n)] = strings.Repeat("a", 63)
	}
	for what, expression := range nastyExpressions() {
		program, err := compileFor(ofObjects, expression)
		if err != nil {
			g.Expect(expression).To(Or(ContainSubstring("dep.spec"), ContainSubstring("dep.status.outputs"), ContainSubstring("dep.?status.?outputs")), "%s: %v", what, err)
			continue
		}
		allocated := allocation.Of(func() { _, _, _ = program.ContextEval(t.Context(), objectVariables(self[0], dep)) })
		g.Expect(allocated).To(BeNumerically("<", mostUsed), what)
	}
	for name, bomb := range bombs() {
		g.Expect(CheckObject(bomb)).NotTo(Succeed(), name)
	}
}
