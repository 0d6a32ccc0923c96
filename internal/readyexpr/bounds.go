package readyexpr

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The cost of an expression and its timeout are looked at between steps. They do not help against one step that makes a text of
// gigabytes out of a short one, or compares lists that are made of each other many times over. So each value that an expression makes has a
// bound, and each step takes what it may allocate off an allowance before it is done.
const (
	// maxAllocated is the allowance of one evaluation, in bytes. What CEL itself takes for steps is not in it, see expressionCost.
	maxAllocated = 400 << 10
	// maxWeight bounds a value that an expression makes: five hundred elements, or a text of 64 kB.
	maxWeight = 500
	// weightBytes is how much text weighs as much as an element, in bytes.
	weightBytes = 128
	// stepSize is what any step may allocate, elementSize what it may allocate for an element that it compares or lists, in bytes.
	stepSize, elementSize = 64, 64
	// textFactor is how many bytes a function may allocate for each byte of a text: most make a list of its characters first.
	textFactor = 8
	// readBytes is how much text a function that allocates nothing reads in the time in which others allocate a byte.
	readBytes = 16
)

// allowanceVariable is the name of the allowance among the variables. No expression can spell it.
const allowanceVariable = "@allowance"

// allowance is what an evaluation may still allocate, in bytes.
type allowance struct{ left int }

func newAllowance() *allowance { return &allowance{left: maxAllocated} }

// use ends the evaluation when so much is not left. An error value would not: the operators || and && go on after one.
func (a *allowance) use(bytes int) {
	if a.left -= bytes; a.left < 0 || bytes < 0 {
		end("it allocates too much")
	}
}

// end ends the evaluation in the way in which CEL itself does it.
func end(message string) {
	panic(interpreter.EvalCancelledError{Message: message, Cause: interpreter.CostLimitExceeded})
}

func allowanceOf(variables interpreter.Activation) *allowance {
	value, _ := variables.ResolveName(allowanceVariable)
	return value.(*allowance)
}

// boundSteps makes the steps of an expression keep to the bounds.
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

// boundedAttribute is a value of a variable. Every turn of a comprehension has at least one, or a call.
type boundedAttribute struct {
	interpreter.InterpretableAttribute
}

// Eval implements interpreter.Interpretable.
func (a *boundedAttribute) Eval(variables interpreter.Activation) ref.Val {
	left := allowanceOf(variables)
	left.use(stepSize)
	value := a.InterpretableAttribute.Eval(variables)
	useKeys(left, value)
	return value
}

// useKeys takes off what it costs to go through a map: a list of its keys is made for that.
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
	left := allowanceOf(variables)
	left.use(stepSize + len(c.InitVals())*elementSize)
	value := c.InterpretableConstructor.Eval(variables)
	left.use(bound(value))
	return value
}

// bound ends the evaluation when the value weighs too much, and returns what it weighs.
func bound(value ref.Val) int {
	left := maxWeight
	weight := weigh(value, &left)
	if left < 0 {
		end("a value is too large")
	}
	return weight
}

// weigh returns what the value weighs, and takes it off what is left. It looks no further when that is less than nothing.
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
