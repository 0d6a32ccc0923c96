package stack

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The cost of an expression and its timeout are looked at between steps. They do not help against one step that makes a text of
// gigabytes out of a short one, or compares lists that are made of each other many times over. So there is a bound for each value, too.
const (
	// maxWeight bounds a value that an expression makes: two thousand elements, or a text of a megabyte.
	maxWeight = 2000
	// weightBytes is how much text weighs as much as an element, in bytes.
	weightBytes = 500
)

// boundValues returns what makes the calls and the lists of an expression keep to the bound.
func boundValues(environment *cel.Env) interpreter.InterpretableDecorator {
	return func(step interpreter.Interpretable) (interpreter.Interpretable, error) {
		switch step := step.(type) {
		case interpreter.InterpretableCall:
			estimate, found := growing[step.Function()]
			if !found {
				return &boundedCall{InterpretableCall: step}, nil
			}
			invoke, err := implementation(environment, step)
			return &boundedCall{InterpretableCall: step, estimate: estimate, invoke: invoke}, err
		case interpreter.InterpretableConstructor:
			return &boundedConstructor{InterpretableConstructor: step}, nil
		}
		return step, nil
	}
}

// growing are the functions whose result can be larger than all that they get by any factor, with how many bytes it will have.
var growing = map[string]func(args []ref.Val) int{
	"replace": func(args []ref.Val) int {
		text, old, new := textOf(args[0]), textOf(args[1]), textOf(args[2])
		return len(text) + strings.Count(text, old)*len(new)
	},
	"join": func(args []ref.Val) int {
		list, isList := args[0].(traits.Lister)
		if !isList || len(args) < 2 {
			return 0
		}
		length, _ := list.Size().(types.Int)
		return int(length) * len(textOf(args[1]))
	},
	// Its format says how long a number gets, and may name a whole Stack many times.
	"format": func(args []ref.Val) int {
		list, isList := args[len(args)-1].(traits.Lister)
		if !isList || strings.Contains(textOf(args[0]), "%.") {
			return maxWeight*weightBytes + 1
		}
		size := 0
		for iterator := list.Iterator(); iterator.HasNext() == types.True; {
			left := maxWeight
			size += weigh(iterator.Next(), &left) * weightBytes
		}
		return size
	},
}

func textOf(value ref.Val) string {
	text, _ := value.(types.String)
	return string(text)
}

// implementation finds the function that a call stands for.
func implementation(environment *cel.Env, call interpreter.InterpretableCall) (functions.FunctionOp, error) {
	overloads, err := environment.Functions()[call.Function()].Bindings()
	if err != nil {
		return nil, err
	}
	for _, overload := range overloads {
		switch {
		case overload.Operator != call.OverloadID():
		case overload.Function != nil:
			return overload.Function, nil
		case overload.Binary != nil:
			return func(args ...ref.Val) ref.Val { return overload.Binary(args[0], args[1]) }, nil
		case overload.Unary != nil:
			return func(args ...ref.Val) ref.Val { return overload.Unary(args[0]) }, nil
		}
	}
	return nil, fmt.Errorf("%s() cannot be used with values whose types are not known", call.Function())
}

// boundedCall is a call whose result keeps to the bound. A function that can make much of little is only called when it will.
type boundedCall struct {
	interpreter.InterpretableCall
	estimate func(args []ref.Val) int
	invoke   functions.FunctionOp
}

// Eval implements interpreter.Interpretable.
func (c *boundedCall) Eval(variables interpreter.Activation) ref.Val {
	if c.invoke == nil {
		return bound(c.InterpretableCall.Eval(variables))
	}
	var args []ref.Val
	for _, arg := range c.Args() {
		value := arg.Eval(variables)
		if types.IsUnknownOrError(value) {
			return value
		}
		args = append(args, value)
	}
	if c.estimate(args) > maxWeight*weightBytes {
		return tooLarge()
	}
	return bound(c.invoke(args...))
}

// boundedConstructor is a list or a map that keeps to the bound.
type boundedConstructor struct {
	interpreter.InterpretableConstructor
}

// Eval implements interpreter.Interpretable.
func (c *boundedConstructor) Eval(variables interpreter.Activation) ref.Val {
	return bound(c.InterpretableConstructor.Eval(variables))
}

func tooLarge() ref.Val { return types.NewErr("a value is too large") }

// bound returns the value, or an error when it weighs too much.
func bound(value ref.Val) ref.Val {
	left := maxWeight
	if weigh(value, &left); left < 0 {
		return tooLarge()
	}
	return value
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
		for iterator := value.Iterator(); *left >= 0 && iterator.HasNext() == types.True; {
			key := iterator.Next()
			weigh(key, left)
			weigh(value.Get(key), left)
		}
	case traits.Lister:
		if length, known := value.Size().(types.Int); known && int(length) > *left {
			*left = -1
		}
		for iterator := value.Iterator(); *left >= 0 && iterator.HasNext() == types.True; {
			weigh(iterator.Next(), left)
		}
	}
	return before - *left
}
