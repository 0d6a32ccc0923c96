package readyexpr

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types/ref"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/allocation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestReadyExprWorksWithTextsAndLists(t *testing.T) {
	dep := &pulumiv1.Stack{Name: "dep", Labels: map[string]string{"zones": "a,b,c"}}
	dep.Status.Outputs = map[string]apiextensionsv1.JSON{"ports": {Raw: []byte(`[80, 443]`)}, "net": {Raw: []byte(`{"cidr": "10.0.0.0/8", "ipv6": false}`)}}
	for _, expression := range []string{
		"dep.metadata.name.replace('d', 'k') == 'kep'", "'aaa'.replace('a', 'b', 2) == 'bba'", "dep.metadata.labels.zones.split(',').join('-') == 'a-b-c'",
		"['a', 'b'].join() == 'ab'", "'%s: %d'.format([dep.metadata.name, 3]) == 'dep: 3'", "[1, 2].map(x, x * 2) + [6] == [2, 4, 6]",
		"{'a': {'b': [1]}}.a.b[0] == 1", "dep.?status.?outputs.?none.orValue(1) == 1", "base64.encode(b'x') == 'eA=='", "sets.contains([1, 2], [1])", "[dep, self].all(x, has(x.spec))",
		"443 in dep.status.outputs.ports", "dep.status.outputs.ports[0] + 1 == 81", "dep.status.outputs['net']['cidr'].startsWith('10.')", "!dep.status.outputs.net.ipv6",
		"dep.status.outputs.all(name, name in ['ports', 'net'])", "dep.metadata.name.matches('^de.$') && !dep.metadata.name.matches('^(a|b)+$')", "!has(dep.status.lastUpdate)",
		"timestamp('2024-01-01T00:00:00Z').getFullYear() == 2024", "duration('1h') > duration('1m')", "'abc'.substring(1) == 'bc' && 'abc'.charAt(0) == 'a' && 'abc'.indexOf('c') == 2",
		"'A'.lowerAscii() == 'a' && ' a '.trim() == 'a' && 'ab'.reverse() == 'ba' && strings.quote('a') == '\"a\"'", "int('1') + int(1.0) == 2 && string(1) == '1' && double(1) == 1.0",
		"[1, 2, 3].exists_one(x, x == 2) && [1, 2].exists(x, x == 1) && [1, 2, 3].filter(x, x > 1).size() == 2", "-1 < 0 && 5 % 2 == 1 && 4 / 2 == 2 && 3 - 1 == 2",
		"optional.of(1).hasValue() && !optional.none().hasValue() && optional.of(1).value() == 1", "type(1) == int && dyn(1) == 1 && 'x' + 'y' == 'xy' && b'a' + b'b' == b'ab'",
		"(dep.spec.suspend ? 'a' : 'b') == 'b'", "bytes('a') == b'a' && uint(1) == 1u && bool('true')", "dep.metadata.labels['zones'].contains('b')",
	} {
		g := NewWithT(t)
		ready, err := Evaluate(t.Context(), expression, &pulumiv1.Stack{}, dep)
		_, cause := evaluateWithoutTimeout(t, expression, &pulumiv1.Stack{}, dep)
		g.Expect(err).NotTo(HaveOccurred(), "%s: %v", expression, cause)
		g.Expect(ready).To(BeTrue(), expression)
	}
}

// mostUsed is what a Stack can make the controller allocate in one evaluation, in bytes.
const mostUsed = 1 << 20

// nastyExpressions returns expressions that compile, and that try to allocate much from little.
func nastyExpressions() map[string]string {
	long := func(text string) string { return "'" + strings.Repeat(text, 600) + "'" }
	numbers := "[" + strings.Repeat("1,", 59) + "1]"
	nested := func(body string, loops int) string {
		for i := range loops {
			body = fmt.Sprintf("%s.all(v%d, %s)", numbers, i, body)
		}
		return body
	}
	return map[string]string{
		"replaced twice":       long("x") + ".replace('x', " + long("y") + ").replace('y', 'zzzzzzzzzz') == ''",
		"replaced nothing":     long("x") + ".replace('', " + long("y") + ") == ''",
		"joined":               long("x") + ".split('').join(" + long("y") + ") == ''",
		"a number made":        "('%.999999' + '999f').format([1.0]) == ''",
		"large numbers":        "'" + strings.Repeat("%f", 50) + "'.format([" + strings.Repeat("1e308,", 49) + "1e308]) == ''",
		"formatted Stacks":     "'" + strings.Repeat("%s", 50) + "'.format([" + strings.Repeat("dep,", 49) + "dep]) == ''",
		"quoted":               strings.Repeat("strings.quote(", 60) + `'\\'` + strings.Repeat(")", 60) + " == ''",
		"doubled":              "['xxxxxxxx']" + strings.Repeat(".map(a, a + a)", 20) + ".all(a, a == a)",
		"lists of lists":       "[[1, 1]]" + strings.Repeat(".map(a, [a, a])", 20) + ".all(a, a == a)",
		"lists added":          "[[1, 1]]" + strings.Repeat(".map(a, a + a)", 20) + ".all(a, a == a)",
		"steps":                nested("v0 + 1 > 0", 5),
		"steps without a call": strings.Repeat(numbers+".exists_one(a, ", 5) + "false" + strings.Repeat(")", 5),
		"lists in a loop":      nested(numbers+" == "+numbers, 3),
		"maps in a loop":       nested("{1: 2, 3: 4, 5: 6}.all(k, k > 0)", 3),
		"keys in a loop":       nested("dep.status.outputs.all(k, k != '')", 3),
		"labels in a loop":     nested("dep.metadata.labels.all(k, k != '')", 3),
		"annotations":          nested("self.metadata.annotations.all(k, k != '')", 3),
		"outputs compared":     nested("dep.status.outputs == self.status.outputs", 2),
		"stacks compared":      nested("dep == self", 2),
		"output in list":       nested("dep.status.outputs.list in [self.status.outputs.list]", 2),
		"outputs decoded":      "dep.status.outputs.all(k, dep.status.outputs[k] != 1) && self.status.outputs.all(k, self.status.outputs[k] != 1)",
		"text read":            nested("dep.status.outputs.text.contains('b')", 2),
		"text reversed":        nested("dep.spec.branch.reverse() != ''", 2),
		"text searched":        nested("dep.spec.branch.indexOf('b') < 0", 2),
		"text matched":         nested("dep.spec.branch.matches('^(a*)*b$') || true", 2),
		"matched":              nested("self.metadata.labels.a.matches('(a|[ab]{1,9}){1,6}$') || true", 2),
		"encoded":              "[b'aaaaaaaa']" + strings.Repeat(".map(a, bytes(base64.encode(a)))", 15) + ".all(a, a == a)",
		"sets":                 nested("sets.equivalent("+numbers+", "+numbers+")", 2),
		"branch doubled":       "[dep.spec.branch]" + strings.Repeat(".map(a, a + a)", 10) + ".all(a, a == a)",
		"not a key":            nested("has({'a': {'x': 1}}[dep.spec.branch].x) || true", 2),
		"not a number":         nested("int(dep.spec.branch) == 1 || true", 2),
		"errors":               nested("[dep.spec.branch][9] == '' || true", 2),
		"optional":             nested("dep.?status.?outputs.?list.orValue([]).all(x, x != 7)", 2),
		"times":                nested("timestamp('2024-01-01T00:00:00Z') + duration('1h') > timestamp('2023-01-01T00:00:00Z')", 3),
		"filtered":             "dep.status.outputs.list.filter(x, true).filter(x, true).map(x, [x]).size() > 0",
		"conditions":           nested("dep.status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True')", 2),
	}
}

func TestReadyExprAllocatesAtMostAMegabyte(t *testing.T) {
	suite.WithoutRaceDetector(t)
	self, dep := largestStacks()
	for name, stacks := range map[string][2]*pulumiv1.Stack{"text": self, "entries": dep} {
		for what, expression := range nastyExpressions() {
			g := NewWithT(t)
			allocated, err := evaluateWithoutTimeout(t, expression, stacks[0], stacks[1])
			t.Logf("%s, Stacks with much %s: %d kB, %v", what, name, allocated>>10, err)
			g.Expect(allocated).To(BeNumerically("<", mostUsed), what)
		}
	}
}

// largestStacks returns the largest Stacks that the API server accepts: some with long texts, and some with many small parts.
func largestStacks() (texts, entries [2]*pulumiv1.Stack) {
	raw := func(value any) apiextensionsv1.JSON {
		encoded, _ := json.Marshal(value)
		return apiextensionsv1.JSON{Raw: encoded}
	}
	for i := range 2 {
		long := &pulumiv1.Stack{Name: "long", Labels: map[string]string{"a": strings.Repeat("a", 63)}}
		long.Annotations = map[string]string{"a": strings.Repeat("a", 200<<10)}
		long.Spec.Branch = strings.Repeat("a", 1<<20)
		long.Status.Outputs = map[string]apiextensionsv1.JSON{"text": raw(strings.Repeat("a", 200<<10)), "list": raw(make([]int, 20<<10))}
		texts[i] = long

		many := &pulumiv1.Stack{Name: "many", Labels: map[string]string{"a": "a"}, Annotations: map[string]string{}}
		many.Status.Outputs = map[string]apiextensionsv1.JSON{"list": raw(make([]int, 400)), "text": raw("a"), "deep": {Raw: []byte(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))}}
		for n := range maxExposedEntries - 5 {
			many.Labels[fmt.Sprint("l", n)] = "a"
			many.Annotations[fmt.Sprint("l", n)] = "a"
			many.Status.Outputs[fmt.Sprint("o", n)] = raw([]any{[]any{}, map[string]any{}, n})
		}
		for n := range maxExposedConditions {
			many.Status.Conditions = append(many.Status.Conditions, metav1.Condition{Type: fmt.Sprint("C", n), Reason: "Some", LastTransitionTime: metav1.Now()})
		}
		entries[i] = many
	}
	return texts, entries
}

// evaluateWithoutTimeout returns the error that stopped the evaluation, and how many bytes the evaluation allocated until then.
func evaluateWithoutTimeout(t *testing.T, expression string, self, dep *pulumiv1.Stack) (allocated uint64, err error) {
	program, err := compile(expression)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), expression)
	allocated = allocation.Of(func() { _, _, err = program.ContextEval(t.Context(), evaluationVariables(self, dep)) })
	return allocated, err
}

// bombs returns expressions that would take far too much when they are compiled, and therefore must not be compiled.
func bombs() map[string]string {
	return map[string]string{
		"repeated text":      `self.metadata.name.matches("(?:` + strings.Repeat("a", 1900) + `){1000}")`,
		"repeated group":     `self.metadata.name.matches("(?:` + strings.Repeat("a", 500) + `){1000}")`,
		"repeated class":     `self.metadata.name.matches("[a-z]{1000}")`,
		"repeated twice":     `self.metadata.name.matches("((a{30}){30})")`,
		"classes of Unicode": `self.metadata.name.matches("` + strings.Repeat(`\\PL`, 100) + `")`,
		"folded ranges":      `self.metadata.name.matches("(?i)` + strings.Repeat(`[B-\\x{1e942}]`, 30) + `")`,
		"folded characters":  `self.metadata.name.matches("(?i)` + strings.Repeat(`[B-𞥂]`, 30) + `")`,
		"many patterns":      strings.Repeat(`self.metadata.name.matches("a{90}") || `, 20) + "true",
		"a number":           "'%.999999999f'.format([1.0]) == ''",
		"a pattern read":     `self.metadata.name.matches(dep.metadata.name)`,
		"a pattern made":     `self.metadata.name.matches("a" + "b")`,
		"no pattern":         `self.metadata.name.matches() || matches()`,
		"as a function":      `matches(self.metadata.name, "[a-z]{1000}")`,
		"optional macros":    "optional.of(1)" + strings.Repeat(".optMap(a, a)", 40) + ".hasValue()",
		"flat macros":        "optional.of(1)" + strings.Repeat(".optFlatMap(a, optional.of(a))", 40) + ".hasValue()",
		"empty maps":         "[" + strings.Repeat("{},", 600) + "{}].all(a, true)",
		"empty lists":        "[" + strings.Repeat("[],", 600) + "[]].all(a, true)",
		"comprehensions":     strings.Repeat("[].exists_one(a,a)&&", 90) + "true",
		"comparisons":        strings.Repeat("[]==[]&&", 200) + "true",
		"messages":           "google.protobuf.Any{type_url: 'a', value: b''} == null",
		"nested":             strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000),
		"nodes":              "[" + strings.Repeat("1,", 1000) + "1].all(a, true)",
	}
}

// mostCompiled is how much the compilation of one expression may allocate, in bytes. The parser allocates most of it. Only one expression
// is compiled at a time.
const mostCompiled = 8 << 20

func TestReadyExprThatIsABombIsRefused(t *testing.T) {
	_, _ = compile("true") // What the first one initializes is not its own.
	all := bombs()
	maps.Copy(all, nastyExpressions())
	for name, expression := range all {
		g := NewWithT(t)
		var err error
		allocated := allocation.Of(func() { _, _, err = newProgram(source{ofStacks, expression}) })
		t.Logf("%s: %d kB, %.80v", name, allocated>>10, err)
		g.Expect(err != nil).To(Equal(bombs()[name] != ""), name)
		g.Expect(allocated).To(BeNumerically("<", mostCompiled), name)
	}
}

// A step that inherits a method which evaluates it would have no bounds.
func TestBoundedStepsEvaluateThemselves(t *testing.T) {
	g := NewWithT(t)
	evaluating := 0
	for _, step := range []any{&boundedCall{}, &boundedConstructor{}, &boundedAttribute{}} {
		for i := range reflect.TypeOf(step).NumMethod() {
			method := reflect.TypeOf(step).Method(i)
			for out := range method.Type.NumOut() {
				if method.Type.Out(out) != reflect.TypeFor[ref.Val]() {
					continue
				}
				evaluating++
				file, _ := runtime.FuncForPC(method.Func.Pointer()).FileLine(method.Func.Pointer())
				g.Expect(file).To(ContainSubstring("internal/controller/readyexpr"), "%T inherits %s", step, method.Name)
			}
		}
	}
	g.Expect(evaluating).To(Equal(6))
}

func TestProgramsThatAreKeptAreBounded(t *testing.T) {
	g := NewWithT(t)
	cache := newCompiler(1 << 20)
	patterns := func(n int) string { return fmt.Sprintf("'%d'.matches('^([a-c]{1,3}x?y*[^d]+){3,5}$')", n) }
	wide := func(n int) string {
		return strings.Repeat(fmt.Sprintf("self.metadata.name != '%d' && ", n), 40) + "true"
	}
	folds := func(n int) string { return strings.Repeat(fmt.Sprintf("[%d].all(a, a > 0) && ", n), 25) + "true" }
	failing := func(n int) string { return fmt.Sprintf("nothing%d", n) + strings.Repeat("+ nobody", 50) }
	usual := func(n int) string {
		return fmt.Sprintf("dep.status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'True') && dep.metadata.generation == %d", n)
	}
	for name, expression := range map[string]func(int) string{"patterns": patterns, "wide": wide, "folds": folds, "failing": failing, "usual": usual} {
		cache = newCompiler(1 << 20)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for n := range 100 {
			_, _ = cache.compile(source{ofStacks, expression(n)})
		}
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&after)
		kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s: %d programs in %d kB, counted as %d kB", name, cache.known.Len(), kept>>10, cache.known.Size()>>10)
		g.Expect(cache.known.Size()).To(BeNumerically("<=", 1<<20))
		g.Expect(kept).To(BeNumerically("<", 3<<19), name)
		g.Expect(cache.known.Len()).To(BeNumerically(">", 0))
	}
	runtime.KeepAlive(cache)
}

func TestProgramIsMadeOnceForAllWhoUseIt(t *testing.T) {
	g := NewWithT(t)
	expression := fmt.Sprintf("dep.metadata.generation == %d", rand.Int32())
	first, err := compile(expression)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(compile(expression)).To(BeIdenticalTo(first))
}

func TestMistakesInAReadyExprAreReportedBriefly(t *testing.T) {
	g := NewWithT(t)
	_, err := compile(strings.Repeat("a && ", 90) + "true")
	g.Expect(err).To(MatchError(ContainSubstring("undeclared reference")), "the first of them")
	g.Expect(len(err.Error())).To(BeNumerically("<", 2*maxQuoted))
}

// BenchmarkReadyExprCost relates the cost units of CEL to time: each of these expressions uses up expressionCost or the allowance.
func BenchmarkReadyExprCost(b *testing.B) {
	texts, entries := largestStacks()
	for name, expression := range nastyExpressions() {
		program, err := compile(expression)
		if err != nil {
			b.Fatal(err)
		}
		for kind, stacks := range map[string][2]*pulumiv1.Stack{"text": texts, "entries": entries} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _, _ = program.ContextEval(b.Context(), evaluationVariables(stacks[0], stacks[1]))
				}
			})
		}
	}
}
