package readyexpr

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/cel-go/cel"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/allocation"
)

// FuzzReadyExpr checks that any expression takes little memory, and that its error is short and quotes no value.
func FuzzReadyExpr(f *testing.F) {
	numbers := "[1,2,3,4,5,6,7,8,9,0]"
	for _, seed := range []string{
		"dep.status.lastUpdate.state == 'succeeded'", "self.metadata.name == dep.metadata.name && has(dep.status.outputs)", "true", "1", "", "dep.spec.envRefs.A.literal.value.startsWith('c')", "int(dep.spec.secrets.a) == 1", "dep.spec.secrets.a.matches('^(a+)+$')", "'a'.matches('(((a{1,30}){1,30}){1,30})')",
		numbers + ".all(a, " + numbers + ".all(b, " + numbers + ".all(c, " + numbers + ".all(d, " + numbers + ".all(e, a + b + c + d + e < 100)))))",
		strings.Repeat("(", 300) + "true" + strings.Repeat(")", 300), strings.Repeat("!", 5000) + "true", "'x'" + strings.Repeat("+'x'", 1500) + " == 'x'", "true //" + strings.Repeat("\x01", 7000),
		strings.Repeat("a.b, ", 1500), "dep.?spec.?x.orValue(true)", "base64.decode('" + strings.Repeat("A", 4000) + "') == b''", "'%s'.format([dep]) == ''", "[1].map(x, [x, x]).flatten() == []", "\xff\u2028",
		"'" + strings.Repeat("x", 4000) + "'.replace('x', '" + strings.Repeat("y", 3000) + "').replace('y', '" + strings.Repeat("z", 900) + "') == ''",
		"'" + strings.Repeat("x", 4000) + "'.split('').join('" + strings.Repeat("y", 3000) + "') == ''", "'%.999999999f'.format([1.0]) == ''",
		"'" + strings.Repeat("\\\\", 10) + "'" + strings.Repeat(".reverse()", 100) + " == ''", "[[1, 1]]" + strings.Repeat(".map(a, a + a)", 60) + ".all(a, a == a)",
		"[[1, 1]]" + strings.Repeat(".map(a, [a, a])", 60) + ".all(a, a == a)", strings.Repeat("strings.quote(", 200) + "'\\\\'" + strings.Repeat(")", 200) + " == ''",
		"'a,b'.split(',').join('-').replace('-', '+') == 'a+b' && '%s is %d'.format(['a', 1]) == 'a is 1'", "{'a': [self, dep]}.a.all(x, x.spec.stack == 'dev')",
	} {
		f.Add(seed)
	}
	for _, expressions := range []map[string]string{bombs(), nastyExpressions()} {
		for _, seed := range expressions {
			f.Add(seed)
		}
	}
	self, dep := filled(), filled()
	texts, entries := largestStacks()
	f.Fuzz(func(t *testing.T, expression string) {
		if _, err := Evaluate(t.Context(), expression, self, dep); err != nil {
			message := err.Error()
			if len(message) > 2*maxQuoted || !utf8.ValidString(message) || strings.Contains(message, canary) && !strings.Contains(expression, canary) {
				t.Fatalf("%q: %d bytes: %q", expression, len(message), message)
			}
		}
		if short := Shorten(expression); len(short) > maxQuoted || !utf8.ValidString(short) {
			t.Fatalf("%q is shortened to %q", expression, short)
		}
		if len(expression) > maxExpression {
			return
		}
		var program cel.Program
		var err error
		if allocated := allocation.Of(func() { program, _, err = newProgram(source{ofStacks, expression}) }); allocated > mostCompiled {
			t.Fatalf("%q: its compilation takes %d bytes", expression, allocated)
		}
		for _, stacks := range [][2]*pulumiv1.Stack{texts, entries} {
			if err != nil {
				break
			}
			allocated := allocation.Of(func() { _, _, _ = program.ContextEval(t.Context(), evaluationVariables(stacks[0], stacks[1])) })
			if allocated > mostUsed {
				t.Fatalf("%q: its evaluation takes %d bytes", expression, allocated)
			}
		}
	})
}
