package readyexpr

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// boundedCall is a call that takes what it may allocate off the allowance before it is made, and whose result keeps to the bound.
type boundedCall struct {
	interpreter.InterpretableCall
	invoke functions.FunctionOp
	// estimate returns what the call may allocate, in bytes, or something that takes as long.
	estimate func(args []ref.Val) int
	// passes says that the result is an argument, or a part of one.
	passes bool
}

func (e *environment) boundCall(call interpreter.InterpretableCall) (interpreter.Interpretable, error) {
	bounded := &boundedCall{InterpretableCall: call, passes: passing[call.Function()]}
	switch call.Function() {
	case operators.NotStrictlyFalse:
		return call, nil // It gets errors, too, and makes nothing.
	case operators.Equals:
		bounded.invoke = func(args ...ref.Val) ref.Val { return types.Equal(args[0], args[1]) }
	case operators.NotEquals:
		bounded.invoke = func(args ...ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) }
	case functionMatches:
		return boundMatch(bounded)
	default:
		invoke, err := e.implementation(call)
		if err != nil {
			return nil, err
		}
		bounded.invoke = invoke
	}
	bounded.estimate = estimateOf(call.Function())
	return bounded, nil
}

// boundMatch compiles the regular expression, which inspect has let pass.
func boundMatch(call *boundedCall) (interpreter.Interpretable, error) {
	literal, isConst := call.Args()[1].(interpreter.InterpretableConst)
	if !isConst {
		return nil, fmt.Errorf("the regular expression of %s() must be a text", functionMatches)
	}
	pattern := textOf(literal.Value())
	instructions, err := instructionsOf(pattern)
	if err != nil {
		return nil, err
	}
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	call.estimate = func(args []ref.Val) int { return (len(textOf(args[0])) + 1) * instructions }
	call.invoke = func(args ...ref.Val) ref.Val {
		text, isText := args[0].(types.String)
		if !isText {
			return types.NewErr("no such overload")
		}
		return types.Bool(compiled.MatchString(string(text)))
	}
	return call, nil
}

// implementation finds the function that a call stands for, as the planner of CEL does.
func (e *environment) implementation(call interpreter.InterpretableCall) (functions.FunctionOp, error) {
	overload, found := e.functions.FindOverload(call.OverloadID())
	if !found {
		overload, found = e.functions.FindOverload(call.Function())
	}
	if !found {
		return nil, fmt.Errorf("%s() cannot be used with values whose types are not known", call.Function())
	}
	return operation(overload), nil
}

// operation is the function of an overload, which expects its first argument to have a trait.
func operation(overload *functions.Overload) functions.FunctionOp {
	return func(args ...ref.Val) ref.Val {
		switch {
		case overload.OperandTrait != 0 && (len(args) == 0 || !args[0].Type().HasTrait(overload.OperandTrait)):
		case overload.Unary != nil && len(args) == 1:
			return overload.Unary(args[0])
		case overload.Binary != nil && len(args) == 2:
			return overload.Binary(args[0], args[1])
		case overload.Function != nil:
			return overload.Function(args...)
		}
		return types.NewErr("no such overload")
	}
}

// Eval implements interpreter.Interpretable.
func (c *boundedCall) Eval(variables interpreter.Activation) ref.Val {
	left := allowanceOf(variables)
	args := make([]ref.Val, 0, 3)
	for _, arg := range c.Args() {
		value := arg.Eval(variables)
		if types.IsUnknownOrError(value) {
			return value
		}
		args = append(args, value)
	}
	left.use(stepSize + c.estimate(args))
	result := c.invoke(args...)
	if c.passes {
		useKeys(left, result)
		return result
	}
	left.use(bound(result))
	return result
}

// passing are the functions that make nothing of their own.
var passing = map[string]bool{"value": true, "orValue": true, "or": true, "optional.of": true, "optional.ofNonZeroValue": true, "dyn": true}

// estimateOf returns the estimate of a function.
func estimateOf(function string) func(args []ref.Val) int {
	switch function {
	case "value", "hasValue", "orValue", "or", "optional.of", "optional.none", "optional.ofNonZeroValue",
		"dyn", "type", operators.LogicalNot:
		return func([]ref.Val) int { return 0 }
	case operators.Add:
		// A list is not copied when another one is added to it.
		return textSize
	case operators.Equals, operators.NotEquals, operators.In,
		operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		"contains", "startsWith", "endsWith", "size":
		return func(args []ref.Val) int { return textSize(args)/readBytes + weightOf(args)*elementSize }
	case "replace":
		return func(args []ref.Val) int {
			text, old, new := textOf(args[0]), textOf(args[1]), textOf(args[2])
			return len(text) + strings.Count(text, old)*len(new)
		}
	case "split":
		return func(args []ref.Val) int { return textSize(args) * elementSize }
	case "join":
		return func(args []ref.Val) int {
			separators := 0
			if list, isList := args[0].(traits.Lister); isList && len(args) == 2 {
				length, _ := list.Size().(types.Int)
				separators = int(length) * len(textOf(args[1]))
			}
			return 2 * (weightOf(args)*weightBytes + separators)
		}
	case "format":
		return estimateFormat
	case "sets.contains", "sets.equivalent", "sets.intersects":
		return func(args []ref.Val) int { return weightOf(args[:1]) * weightOf(args[1:]) * elementSize }
	}
	return func(args []ref.Val) int { return textSize(args)*textFactor + weightOf(args)*elementSize }
}

// estimateFormat refuses a precision: a format says with it how long a number gets. It allows 512 bytes for any other one.
func estimateFormat(args []ref.Val) int {
	if strings.Contains(textOf(args[0]), "%.") {
		return maxAllocated + 1
	}
	return textSize(args) + weightOf(args)*4*weightBytes
}

func textOf(value ref.Val) string {
	text, _ := value.(types.String)
	return string(text)
}

// textSize is the length of those values that are text, in bytes.
func textSize(values []ref.Val) int {
	size := 0
	for _, value := range values {
		switch value := value.(type) {
		case types.String:
			size += len(value)
		case types.Bytes:
			size += len(value)
		}
	}
	return size
}

// weightOf is what the values weigh that are no text, or more than an evaluation may allocate.
func weightOf(values []ref.Val) int {
	left := maxAllocated / elementSize
	total := 0
	for _, value := range values {
		switch value.(type) {
		case types.String, types.Bytes, types.Int, types.Bool, types.Double, types.Uint:
		default:
			total += weigh(value, &left)
		}
	}
	if left < 0 {
		return maxAllocated + 1
	}
	return total
}
