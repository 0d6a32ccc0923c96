package stack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/lru"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Bounds of a readyExpr, which anybody who may write Stacks may write.
const (
	// maxExpression is its length in bytes.
	maxExpression = 8 << 10
	// maxQuoted bounds, in bytes, what a message quotes of an expression or of the mistakes in it.
	maxQuoted = 1 << 10
	// expressionCost bounds one evaluation, in units of CEL; it is what an API server allows for one rule.
	expressionCost = 1_000_000
	// expressionTimeout bounds one evaluation, whatever its cost is said to be.
	expressionTimeout = 200 * time.Millisecond
	// keptExpressions is how many of them are kept compiled.
	keptExpressions = 1000
)

// hidden takes the place of values that an expression must not see: it could tell them in a condition.
const hidden = "[secret]"

// compiledExpressions are the programs, or errors, of the expressions that were used last.
var compiledExpressions = lru.New(keptExpressions)

// expressionEnvironment has the functions and the variables that Flux's controllers give to a readyExpr.
var expressionEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.HomogeneousAggregateLiterals(),
		cel.EagerlyValidateDeclarations(true),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(),
		ext.Strings(), ext.Sets(), ext.Encoders(),
		cel.Variable("self", cel.ObjectType("google.protobuf.Struct")),
		cel.Variable("dep", cel.ObjectType("google.protobuf.Struct")),
	)
})

// compileExpression returns the program of an expression, and an error for the user when it is none.
func compileExpression(expression string) (cel.Program, error) {
	type compiled struct {
		program cel.Program
		err     error
	}
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("it is longer than %d bytes", maxExpression)
	}
	if known, ok := compiledExpressions.Get(expression); ok {
		return known.(compiled).program, known.(compiled).err
	}
	program, err := newProgram(expression)
	if err != nil {
		err = errors.New(shortened(err.Error()))
	}
	compiledExpressions.Add(expression, compiled{program, err})
	return program, err
}

// shortened is the text with its end cut off when it is too long for a condition: the compiler quotes a line for every mistake in it.
func shortened(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxQuoted {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuoted], "") + " …"
}

func newProgram(expression string) (cel.Program, error) {
	environment, err := expressionEnvironment()
	if err != nil {
		return nil, err
	}
	checked, issues := environment.Compile(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	if checked.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("its result is a %s and not a bool", checked.OutputType())
	}
	return environment.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.InterruptCheckFrequency(100), cel.CostLimit(expressionCost),
		cel.CustomDecorator(boundValues(environment)))
}

// errEvaluation stands for errors of an evaluation whose text could quote what the expression has read.
var errEvaluation = errors.New("it cannot be evaluated: a value may be missing (use has()), of another type, or take too long")

// evaluateExpression tells whether the Stack "dep" is ready for the Stack "self".
func evaluateExpression(ctx context.Context, expression string, self, dep *pulumiv1.Stack) (bool, error) {
	program, err := compileExpression(expression)
	if err != nil {
		return false, err
	}
	variables := map[string]any{}
	for name, stack := range map[string]*pulumiv1.Stack{"self": self, "dep": dep} {
		if variables[name], err = exposed(stack); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, expressionTimeout)
	defer cancel()
	value, _, err := program.ContextEval(ctx, variables)
	if err != nil {
		return false, errEvaluation
	}
	ready, ok := value.Value().(bool)
	return ready && ok, nil
}

// exposed is the Stack as an expression sees it: all of it, but for secrets that are written in clear.
func exposed(stack *pulumiv1.Stack) (map[string]any, error) {
	shown := *stack
	shown.APIVersion, shown.Kind = pulumiv1.GroupVersion.String(), pulumiv1.StackKind
	shown.ManagedFields = nil
	shown.Spec.Secrets = hideTexts(shown.Spec.Secrets)
	shown.Spec.SecretRefs = hideLiterals(shown.Spec.SecretRefs)
	shown.Spec.EnvRefs = hideLiterals(shown.Spec.EnvRefs)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&shown)
	if err != nil {
		return nil, fmt.Errorf("show the stack %s to an expression: %w", stack.Name, err)
	}
	return content, nil
}

func hideTexts(texts map[string]string) map[string]string {
	if texts == nil {
		return nil
	}
	shown := map[string]string{}
	for key := range texts {
		shown[key] = hidden
	}
	return shown
}

func hideLiterals(refs map[string]pulumiv1.ResourceRef) map[string]pulumiv1.ResourceRef {
	if refs == nil {
		return nil
	}
	shown := map[string]pulumiv1.ResourceRef{}
	for key, ref := range refs {
		if ref.LiteralRef != nil {
			ref.LiteralRef = &pulumiv1.LiteralRef{Value: hidden}
		}
		shown[key] = ref
	}
	return shown
}
