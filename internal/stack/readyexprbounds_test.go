package stack

import (
	"runtime"
	"strings"
	"testing"

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
		allocated, err := evaluateWithoutTimeout(t, expression)
		t.Logf("%s: %v, %d KB", name, err, allocated>>10)
		g.Expect(err).To(MatchError(ContainSubstring("a value is too large")), name)
		g.Expect(allocated).To(BeNumerically("<", mostAllocated), name)
	}
}

// mostAllocated is what one of these evaluations may allocate in all, in bytes: some values of a megabyte.
const mostAllocated = 64 << 20

// evaluateWithoutTimeout returns what stopped the evaluation, and how many bytes it allocated until then.
func evaluateWithoutTimeout(t *testing.T, expression string) (allocated uint64, err error) {
	program, err := compileExpression(expression)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), expression)
	empty, err := exposed(&pulumiv1.Stack{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err = program.ContextEval(t.Context(), map[string]any{"self": empty, "dep": empty})
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

func TestMistakesInAReadyExprAreToldBriefly(t *testing.T) {
	g := NewWithT(t)
	_, err := compileExpression(strings.Repeat("a.b && ", 1000) + "true")
	g.Expect(err).To(MatchError(ContainSubstring("undeclared reference")), "the first of them")
	g.Expect(len(err.Error())).To(BeNumerically("<", 2*maxQuoted))
}
