// Package readyexpr evaluates the CEL expressions of spec.dependsOn[].readyExpr. Anybody who may write Stacks may write one, so everything
// that an expression can cost is bounded: its compilation, its program in memory, and each evaluation.
//
// It has the functions of github.com/fluxcd/pkg/runtime/cel and is not built on that package, which has no bounds, and whose macros optMap
// and optFlatMap make a billion nodes of 400 bytes. The limits of cel-go alone are not enough. Its cost limit is compared after each
// step: with a field of 1 MB, [a].map(a, a + a) ten times in a row allocates 2 GB before it meets the limit. Its validators look at an
// expression that was checked already, and the check compares each open type with all others.
package readyexpr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/bytecache"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// Bounds of a readyExpr, which anybody who may write Stacks may write.
const (
	// maxExpression is its length in bytes. The parser takes about 2 kB of memory for each of them.
	maxExpression = 2 << 10
	// maxQuoted bounds, in bytes, what a message quotes of an expression or of the mistakes in it.
	maxQuoted = 1 << 10
	// expressionCost bounds the steps of one evaluation, in units of CEL. BenchmarkReadyExprCost relates it to time: of the expressions that try
	// to take much, the slowest takes 8 ms with the largest Stacks, which is 1.6 µs for a unit.
	expressionCost = 5000
	// expressionTimeout bounds one evaluation, whatever its cost is said to be.
	expressionTimeout = 100 * time.Millisecond
)

// readyExprDocs is where the documentation lists what an expression may read.
const readyExprDocs = "docs/spec/v1/stacks.md#prerequisites-and-dependencies"

// compiler makes programs of expressions, one at a time because of the memory that it takes, and keeps those that were used last.
type compiler struct {
	// compiling is held by who makes a program, mu only while the known ones are looked at.
	compiling, mu sync.Mutex
	known         *bytecache.Cache[string, compiled]
}

// compiled is the program of an expression, or why there is none.
type compiled struct {
	program cel.Program
	err     error
}

// maxCachedPrograms bounds the memory of all programs that are kept, in bytes: some hundreds of usual ones.
const maxCachedPrograms = 16 << 20

// expressions is shared by all Stacks, so that a program is kept once however many use it.
var expressions = newCompiler(maxCachedPrograms)

func newCompiler(limit int64) *compiler {
	return &compiler{known: bytecache.New[string, compiled](limit)}
}

// environment is what an expression can use: the functions and variables that Flux's controllers give to a readyExpr, except for the macros
// optMap and optFlatMap: each of them doubles its target, so that 30 in a row, in 400 bytes, would be a billion nodes before any limit applies.
type environment struct {
	*cel.Env
	// functions has the implementation of each overload.
	functions interpreter.Dispatcher
}

var newEnvironment = sync.OnceValues(func() (*environment, error) {
	env, err := cel.NewEnv(
		cel.CustomTypeAdapter(exposedAdapter{}),
		cel.HomogeneousAggregateLiterals(),
		cel.EagerlyValidateDeclarations(true),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(), cel.ClearMacros(), cel.Macros(cel.StandardMacros...),
		ext.Strings(), ext.Sets(), ext.Encoders(),
		cel.Variable("self", cel.ObjectType("google.protobuf.Struct")),
		cel.Variable("dep", cel.ObjectType("google.protobuf.Struct")),
	)
	if err != nil {
		return nil, err
	}
	dispatcher := interpreter.NewDispatcher()
	for _, function := range env.Functions() {
		overloads, err := function.Bindings()
		if err == nil {
			err = dispatcher.Add(overloads...)
		}
		if err != nil {
			return nil, err
		}
	}
	return &environment{env, dispatcher}, nil
})

// Check returns an error for the user when the expression cannot be used.
func Check(expression string) error {
	_, err := compile(expression)
	return err
}

// compile returns the program of an expression, and an error for the user when it is none.
func compile(expression string) (cel.Program, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("it is longer than %d bytes", maxExpression)
	}
	return expressions.compile(expression)
}

func (c *compiler) compile(expression string) (cel.Program, error) {
	if known, ok := c.get(expression); ok {
		return known.program, known.err
	}
	c.compiling.Lock()
	defer c.compiling.Unlock()
	if known, ok := c.get(expression); ok {
		return known.program, known.err
	}
	program, size, err := newProgram(expression)
	if err != nil {
		err = errors.New(Shorten(err.Error()))
		size = int64(len(err.Error()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Add(expression, compiled{program, err}, size+int64(2*len(expression)))
	return program, err
}

func (c *compiler) get(expression string) (compiled, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.Get(expression)
}

// Shorten returns the start of a text, such as an expression, that is short enough for a condition.
func Shorten(text string) string {
	return plaintext.Cut(text, maxQuoted)
}

// newProgram also returns about how much memory the program takes, in bytes. It looks at the parsed expression before the two steps that
// can make much of little: the checking of types, and the compilation of regular expressions.
func newProgram(expression string) (_ cel.Program, size int64, err error) {
	env, err := newEnvironment()
	if err != nil {
		return nil, 0, err
	}
	parsed, issues := env.Parse(expression)
	if len(issues.Errors()) > 0 {
		return nil, 0, mistakes(issues)
	}
	if size, err = inspect(parsed.NativeRep().Expr()); err != nil {
		return nil, 0, err
	}
	checked, issues := env.Check(parsed)
	if len(issues.Errors()) > 0 {
		return nil, 0, mistakes(issues)
	}
	if checked.OutputType() != cel.BoolType {
		return nil, 0, fmt.Errorf("its result is a %s and not a bool", checked.OutputType())
	}
	// Without the optimizations of CEL: the values and regular expressions that they make would not pass the bounds of an evaluation.
	program, err := env.Program(checked,
		cel.InterruptCheckFrequency(100), cel.CostLimit(expressionCost), cel.CustomDecorator(env.boundSteps))
	return program, size, err
}

// mistakes lists the first of them. The text that Issues.Err makes takes megabytes: it quotes the whole line for each.
func mistakes(issues *cel.Issues) error {
	var told []string
	for _, mistake := range issues.Errors() {
		told = append(told, fmt.Sprintf("%d:%d: %s", mistake.Location.Line(), mistake.Location.Column()+1, Shorten(mistake.Message)))
		if len(told) == 3 {
			break
		}
	}
	return errors.New(strings.Join(told, "; "))
}

// ErrEvaluation stands for errors of an evaluation, whose text could quote what the expression has read.
var ErrEvaluation = errors.New("it cannot be evaluated: a value may be missing (use has()), of another type, too large or not among the " +
	"fields listed in " + readyExprDocs + ", or the expression takes too many steps")

// Evaluate reports whether the Stack "dep" is ready for the Stack "self", which it only reads. No value of theirs is in its error, which is
// ErrEvaluation or says why the expression cannot be used.
func Evaluate(ctx context.Context, expression string, self, dep *pulumiv1.Stack) (bool, error) {
	program, err := compile(expression)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, expressionTimeout)
	defer cancel()
	value, _, err := program.ContextEval(ctx, evaluationVariables(self, dep))
	if err != nil {
		return false, ErrEvaluation
	}
	ready, ok := value.Value().(bool)
	return ready && ok, nil
}

// evaluationVariables are those of one evaluation, with what it may use. The Stacks are only looked at when the expression names them.
func evaluationVariables(self, dep *pulumiv1.Stack) map[string]any {
	left := newAllowance()
	return map[string]any{
		allowanceVariable: left,
		"self":            func() any { return exposed("self", self, left) },
		"dep":             func() any { return exposed("dep", dep, left) },
	}
}
