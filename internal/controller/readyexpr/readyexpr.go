// Package readyexpr evaluates the CEL expressions of spec.dependsOn[].readyExpr of Stacks, and of spec.waves[].check of StackRollouts. Anybody who
// may write these may write such an expression, so its cost is bounded everywhere: its compilation, its program in memory, and each evaluation.
//
// Expressions have the functions of github.com/fluxcd/pkg/runtime/cel. The package does not use that one, which has no bounds, and whose
// macros optMap and optFlatMap make a billion nodes from an expression of 400 bytes. The limits of cel-go alone are not enough. cel-go
// compares the cost with the limit only after each step: with a field of 1 MB, ten times [a].map(a, a + a) in a row allocate 2 GB before
// they reach the limit. The validators of cel-go get an expression whose types were checked already, and that check compares each open type
// with all others.
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
	// maxExpression is the maximum length of an expression in bytes. The parser takes about 2 kB of memory for each byte.
	maxExpression = 2 << 10
	// maxQuoted bounds how many bytes a message quotes of an expression or of the mistakes in it.
	maxQuoted = 1 << 10
	// expressionCost bounds the steps of one evaluation, in units of CEL. BenchmarkReadyExprCost relates the units to time: the slowest of
	// the expressions that try to take much takes 8 ms with the largest Stacks, which is 1.6 µs per unit.
	expressionCost = 5000
	// expressionTimeout bounds one evaluation, whatever its cost in units is.
	expressionTimeout = 100 * time.Millisecond
)

// readyExprDocs is where the documentation lists the fields that an expression may read.
const readyExprDocs = "docs/spec/v1/stacks.md#prerequisites-and-dependencies"

// compiler compiles expressions into programs, one at a time because of the memory that a compilation takes. It keeps the programs that
// were used last.
type compiler struct {
	// compiling is locked while a program is compiled, and mu only while known is read or written.
	compiling, mu sync.Mutex
	known         *bytecache.Cache[source, compiled]
}

// subject is what an expression is about. It decides which variables and fields the expression may read.
type subject int

const (
	ofStacks  subject = iota // "dep" is a Stack
	ofObjects                // "dep" is an object of another kind
	ofMembers                // "stack" is a Stack of a StackRollout
)

// variables are the names of all variables.
var variables = []string{"self", "dep", "stack"}

// has returns an error for a variable that an expression about the subject does not have.
func (s subject) has(variable string) error {
	if (variable == "stack") != (s == ofMembers) {
		return fmt.Errorf("there is no variable %s in it", variable)
	}
	return nil
}

// source is what a program is made from.
type source struct {
	dep        subject
	expression string
}

// compiled is the program of an expression, or the error that explains why there is none.
type compiled struct {
	program cel.Program
	err     error
}

// maxCachedPrograms bounds the memory of all programs that are kept, in bytes: some hundreds of usual ones.
const maxCachedPrograms = 16 << 20

// expressions is shared by all Stacks, so that Stacks with the same expression share one program.
var expressions = newCompiler(maxCachedPrograms)

func newCompiler(limit int64) *compiler {
	return &compiler{known: bytecache.New[source, compiled](limit)}
}

// environment is what an expression can use: the functions and variables that Flux's controllers offer to a readyExpr, except for the
// macros optMap and optFlatMap. Each of these doubles its target, so that 30 of them in a row, in 400 bytes, would be a billion nodes
// before any limit applies.
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
		cel.Variable("stack", cel.ObjectType("google.protobuf.Struct")),
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

// Check returns an error that explains to the user why the expression of a dependency on a Stack cannot be used, or nil.
func Check(expression string) error {
	_, err := compile(expression)
	return err
}

// compile returns the program of an expression about two Stacks, or an error for the user when the expression is not valid.
func compile(expression string) (cel.Program, error) {
	return compileFor(ofStacks, expression)
}

func compileFor(dep subject, expression string) (cel.Program, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("it is longer than %d bytes", maxExpression)
	}
	return expressions.compile(source{dep, expression})
}

func (c *compiler) compile(from source) (cel.Program, error) {
	if known, ok := c.get(from); ok {
		return known.program, known.err
	}
	c.compiling.Lock()
	defer c.compiling.Unlock()
	if known, ok := c.get(from); ok {
		return known.program, known.err
	}
	program, size, err := newProgram(from)
	if err != nil {
		err = errors.New(Shorten(err.Error()))
		size = int64(len(err.Error()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Add(from, compiled{program, err}, size+int64(2*len(from.expression)))
	return program, err
}

func (c *compiler) get(from source) (compiled, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.Get(from)
}

// Shorten returns the start of a text, such as an expression, that is short enough for a condition.
func Shorten(text string) string {
	return plaintext.Cut(text, maxQuoted)
}

// newProgram also returns about how much memory the program takes, in bytes. It inspects the parsed expression before the two steps that
// can make much from little: the check of types, and the compilation of regular expressions.
func newProgram(from source) (_ cel.Program, size int64, err error) {
	env, err := newEnvironment()
	if err != nil {
		return nil, 0, err
	}
	parsed, issues := env.Parse(from.expression)
	if len(issues.Errors()) > 0 {
		return nil, 0, mistakes(issues)
	}
	if size, err = inspect(parsed.NativeRep().Expr(), from.dep); err != nil {
		return nil, 0, err
	}
	checked, issues := env.Check(parsed)
	if len(issues.Errors()) > 0 {
		return nil, 0, mistakes(issues)
	}
	if checked.OutputType() != cel.BoolType {
		return nil, 0, fmt.Errorf("its result is a %s and not a bool", checked.OutputType())
	}
	// The optimizations of CEL stay off: the values and regular expressions that they make would bypass the bounds of an evaluation.
	program, err := env.Program(checked,
		cel.InterruptCheckFrequency(100), cel.CostLimit(expressionCost), cel.CustomDecorator(env.boundSteps))
	return program, size, err
}

// mistakes returns an error with the first three mistakes. The text of Issues.Err takes megabytes, because it quotes the whole line for
// each mistake.
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

// ErrEvaluation replaces errors of an evaluation, whose text could quote values that the expression has read.
var ErrEvaluation = errors.New("it cannot be evaluated: a value may be missing (use has()), of another type, too large or not among the " +
	"fields listed in " + readyExprDocs + ", or the expression takes too many steps")

// Evaluate reports whether the Stack "dep" is ready for the Stack "self". It does not change the Stacks. Its error contains no value of the
// Stacks: it is ErrEvaluation, or explains why the expression cannot be used.
func Evaluate(ctx context.Context, expression string, self, dep *pulumiv1.Stack) (bool, error) {
	program, err := compile(expression)
	if err != nil {
		return false, err
	}
	return run(ctx, program, evaluationVariables(self, dep))
}

func run(ctx context.Context, program cel.Program, variables map[string]any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, expressionTimeout)
	defer cancel()
	value, _, err := program.ContextEval(ctx, variables)
	if err != nil {
		return false, ErrEvaluation
	}
	ready, ok := value.Value().(bool)
	return ready && ok, nil
}

// evaluationVariables returns the variables of one evaluation, including its allowance. The Stacks are read only when the expression names
// them.
func evaluationVariables(self, dep *pulumiv1.Stack) map[string]any {
	left := newAllowance()
	return map[string]any{
		allowanceVariable: left,
		"self":            func() any { return exposed("self", self, left) },
		"dep":             func() any { return exposed("dep", dep, left) },
	}
}

// CheckMember is Check for an expression about a Stack of a StackRollout.
func CheckMember(expression string) error {
	_, err := compileFor(ofMembers, expression)
	return err
}

// EvaluateMember is Evaluate for a Stack of a StackRollout, which is "stack" in the expression.
func EvaluateMember(ctx context.Context, expression string, stack *pulumiv1.Stack) (bool, error) {
	program, err := compileFor(ofMembers, expression)
	if err != nil {
		return false, err
	}
	left := newAllowance()
	return run(ctx, program, map[string]any{allowanceVariable: left, "stack": func() any { return exposed("stack", stack, left) }})
}
