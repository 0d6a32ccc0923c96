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

// boundedCall is a call that subtracts what it may allocate from the allowance before it runs, and whose result keeps to the bound.
type boundedCall struct {
	interpreter.InterpretableCall
	invoke functions.FunctionOp
	// estimate returns how many bytes the call may allocate, or a number of bytes whose allocation takes as long as the call.
	estimate func(args []ref.Val) int
	// passes reports whether the result is an argument, or a part of an argument.
	passes bool
}

func (e *environment) boundCall(call interpreter.InterpretableCall) (interpreter.Interpretable, error) {
	bounded := &boundedCall{InterpretableCall: call, passes: passing[call.Function()]}
	switch call.Function() {
	case operators.NotStrictlyFalse:
		return call, nil // It also receives errors, and allocates nothing.
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

// boundMatch compiles the regular expression, which inspect has accepted.
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

// implementation returns the function that implements the call, chosen as the planner of CEL does.
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

// operation returns the function of an overload, which may require a trait of its first argument.
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
	return c.Exec(interpreter.AsFrame(variables))
}

// Exec implements interpreter.InterpretableV2.
func (c *boundedCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	left := allowanceOf(frame)
	args := make([]ref.Val, 0, 3)
	for _, arg := range c.Args() {
		value := arg.Exec(frame)
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

// passing are the functions that make no value of their own.
var passing = map[string]bool{"value": true, "orValue": true, "or": true, "optional.of": true, "optional.ofNonZeroValue": true, "dyn": true}

// estimateOf returns the function that estimates the calls of a function.
func estimateOf(function string) func(args []ref.Val) int {
	switch function {
	case "value", "hasValue", "orValue", "or", "optional.of", "optional.none", "optional.ofNonZeroValue",
		"dyn", "type", operators.LogicalNot:
		return func([]ref.Val) int { return 0 }
	case operators.Add:
		// Adding a list to another one copies neither.
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

// estimateFormat rejects a precision, with which the format sets the length of a number. For each value without a precision it allows 512
// bytes.
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

// textSize returns the total length of the values that are text, in bytes.
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

// weightOf returns the weight of the values that are neither text nor numbers nor booleans; maxAllocated+1 when they weigh more than an
// evaluation may allocate.
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
