package stack

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestReadyExprWorksWithTextsAndLists(t *testing.T) {
	dep := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Name: "dep", Labels: map[string]string{"zones": "a,b,c"}}}
	for _, expression := range []string{
		"dep.metadata.name.replace('d', 'k') == 'kep'", "'aaa'.replace('a', 'b', 2) == 'bba'", "dep.metadata.labels.zones.split(',').join('-') == 'a-b-c'",
		"['a', 'b'].join() == 'ab'", "'%s: %d'.format([dep.metadata.name, 3]) == 'dep: 3'", "[1, 2].map(x, x * 2) + [6] == [2, 4, 6]",
		"{'a': {'b': [1]}}.a.b[0] == 1", "dep.?spec.?none.orValue(1) == 1", "base64.encode(b'x') == 'eA=='", "sets.contains([1, 2], [1])", "[dep, self].all(x, has(x.spec))",
	} {
		g := NewWithT(t)
		ready, err := evaluateExpression(t.Context(), expression, &pulumiv1.Stack{}, dep)
		g.Expect(err).NotTo(HaveOccurred(), expression)
		g.Expect(ready).To(BeTrue(), expression)
	}
}

func TestReadyExprCannotMakeMuchOfLittle(t *testing.T) {
	long := func(text string) string { return "'" + strings.Repeat(text, 2500) + "'" }
	for name, expression := range map[string]string{
		"replaced twice":   long("x") + ".replace('x', " + long("y") + ").replace('y', 'zzzzzzzzzz') == ''",
		"replaced nothing": long("x") + ".replace('', " + long("y") + ") == ''",
		"joined":           long("x") + ".split('').join(" + long("y") + ") == ''",
		"a number":         "'%.999999999f'.format([1.0]) == ''",
		"quoted":           strings.Repeat("strings.quote(", 60) + `'\\'` + strings.Repeat(")", 60) + " == ''",
		"doubled":          "['xxxxxxxx']" + strings.Repeat(".map(a, a + a)", 40) + ".all(a, a == a)",
		"lists of lists":   "[[1, 1]]" + strings.Repeat(".map(a, [a, a])", 40) + ".all(a, a == a)",
		"lists added":      "[[1, 1]]" + strings.Repeat(".map(a, a + a)", 40) + ".all(a, a == a)",
	} {
		g := NewWithT(t)
		_, err := compileExpression(expression)
		g.Expect(err).NotTo(HaveOccurred(), name)
		begin := time.Now()
		_, err = evaluateExpression(t.Context(), expression, &pulumiv1.Stack{}, &pulumiv1.Stack{})
		g.Expect(err).To(MatchError(errEvaluation), name)
		g.Expect(time.Since(begin)).To(BeNumerically("<", 2*time.Second), name)
	}
}

func TestMistakesInAReadyExprAreToldBriefly(t *testing.T) {
	g := NewWithT(t)
	_, err := compileExpression(strings.Repeat("a.b && ", 1000) + "true")
	g.Expect(err).To(MatchError(ContainSubstring("undeclared reference")), "the first of them")
	g.Expect(len(err.Error())).To(BeNumerically("<", 2*maxQuoted))
}
