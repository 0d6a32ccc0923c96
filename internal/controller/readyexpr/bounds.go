package readyexpr

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// CEL checks the cost of an expression and its timeout between steps. That does not help against a single step that makes a text of
// gigabytes from a short one, or compares lists that contain each other many times. So each value that an expression makes has a bound, and
// each step subtracts what it may allocate from an allowance before it runs.
const (
	// maxAllocated is the allowance of one evaluation, in bytes. It does not include what CEL itself allocates for steps, see
	// expressionCost.
	maxAllocated = 400 << 10
	// maxWeight bounds the weight of a value that an expression makes: five hundred elements, or a text of 64 kB.
	maxWeight = 500
	// weightBytes is the length of a text that weighs as much as one element, in bytes.
	weightBytes = 128
	// stepSize is what any step may allocate, and elementSize what a step may allocate for each element that it compares or lists, in
	// bytes.
	stepSize, elementSize = 64, 64
	// textFactor is how many bytes a function may allocate for each byte of a text: most functions first make a list of the characters.
	textFactor = 8
	// readBytes is how many bytes of text a function that allocates nothing reads in the time in which other functions allocate one byte.
	readBytes = 16
)

// allowanceVariable is the name of the allowance among the variables. It is not a valid identifier in an expression.
const allowanceVariable = "@allowance"

// allowance is what an evaluation may still allocate, in bytes.
type allowance struct{ left int }

func newAllowance() *allowance { return &allowance{left: maxAllocated} }

// use subtracts bytes from the allowance, and ends the evaluation when the allowance is used up. An error value would not end it: the
// operators "||" and "&&" evaluate their other side after an error.
func (a *allowance) use(bytes int) {
	if a.left -= bytes; a.left < 0 || bytes < 0 {
		end("it allocates too much")
	}
}

// end ends the evaluation in the same way as CEL does.
func end(message string) {
	panic(interpreter.EvalCancelledError{Message: message, Cause: interpreter.CostLimitExceeded})
}

func allowanceOf(variables interpreter.Activation) *allowance {
	value, _ := variables.ResolveName(allowanceVariable)
	return value.(*allowance)
}

// boundSteps is a decorator that makes the steps of an expression keep to the bounds. A bounded step has every method of its own that
// evaluates the step: one that it inherits would evaluate it without bounds.
func (e *environment) boundSteps(step interpreter.Interpretable) (interpreter.Interpretable, error) {
	switch step := step.(type) {
	case interpreter.InterpretableCall:
		return e.boundCall(step)
	case interpreter.InterpretableConstructor:
		return &boundedConstructor{step}, nil
	case interpreter.InterpretableAttribute:
		return &boundedAttribute{step}, nil
	}
	return step, nil
}

// boundedAttribute is the value of a variable. Every iteration of a comprehension has at least one boundedAttribute or boundedCall.
type boundedAttribute struct {
	interpreter.InterpretableAttribute
}

// Eval implements interpreter.Interpretable.
func (a *boundedAttribute) Eval(variables interpreter.Activation) ref.Val {
	return a.Exec(interpreter.AsFrame(variables))
}

// Exec implements interpreter.InterpretableV2.
func (a *boundedAttribute) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	left := allowanceOf(frame)
	left.use(stepSize)
	value := a.InterpretableAttribute.Exec(frame)
	useKeys(left, value)
	return value
}

// useKeys subtracts the cost of an iteration over a map from the allowance: the iteration makes a list of the keys.
func useKeys(left *allowance, value ref.Val) {
	if entries, isMap := value.(traits.Mapper); isMap {
		size, _ := entries.Size().(types.Int)
		left.use(int(size) * elementSize)
	}
}

// boundedConstructor is a list or a map that keeps to the bounds.
type boundedConstructor struct {
	interpreter.InterpretableConstructor
}

// Eval implements interpreter.Interpretable.
func (c *boundedConstructor) Eval(variables interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(variables))
}

// Exec implements interpreter.InterpretableV2.
func (c *boundedConstructor) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	left := allowanceOf(frame)
	left.use(stepSize + len(c.InitVals())*elementSize)
	value := c.InterpretableConstructor.Exec(frame)
	left.use(bound(value))
	return value
}

// bound returns the weight of the value, and ends the evaluation when the value weighs too much.
func bound(value ref.Val) int {
	left := maxWeight
	weight := weigh(value, &left)
	if left < 0 {
		end("a value is too large")
	}
	return weight
}

// weigh returns the weight of the value, and subtracts it from left. It stops as soon as left is below zero.
func weigh(value ref.Val, left *int) int {
	before := *left
	*left--
	switch value := value.(type) {
	case types.String:
		*left -= len(value) / weightBytes
	case types.Bytes:
		*left -= len(value) / weightBytes
	case *types.Optional:
		if value.HasValue() {
			weigh(value.GetValue(), left)
		}
	case traits.Mapper:
		if size, known := value.Size().(types.Int); known && int(size) > *left {
			*left = -1
			break
		}
		for iterator := value.Iterator(); *left >= 0 && iterator.HasNext() == types.True; {
			key := iterator.Next()
			weigh(key, left)
			weigh(value.Get(key), left)
		}
	case traits.Lister:
		length, known := value.Size().(types.Int)
		if !known || int(length) > *left {
			*left = -1
			break
		}
		for at := types.Int(0); *left >= 0 && at < length; at++ {
			weigh(value.Get(at), left)
		}
	}
	return before - *left
}
