package readyexpr

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// Bounds of a parsed expression.
const (
	// maxNodes is how many nodes the expression may have, including those that macros make.
	maxNodes = 600
	// maxGeneric is how many of the nodes may be of an open type, such as [] and ==. The type checker compares each of them with all
	// others.
	maxGeneric = 100
	// maxPattern is the length of all regular expressions together, in bytes, and maxInstructions the length of their programs.
	maxPattern, maxInstructions = 512, 500

	// About how much memory a program takes, in bytes: in any case, for each node, and for each instruction of a regular expression.
	programOverhead, nodeSize, instructionSize = 16 << 10, 256, 128
)

// functionMatches is the function that takes a regular expression.
const functionMatches = "matches"

// inspection walks through a parsed expression.
type inspection struct {
	dep                                   subject
	nodes, generic, pattern, instructions int
	err                                   error
}

// inspect returns an error for an expression that would take too much memory or time to be checked, compiled or kept, and for one that
// reads fields that it must not read. For other expressions it returns about how much memory the program takes, in bytes.
func inspect(expression ast.Expr, dep subject) (size int64, err error) {
	found := &inspection{dep: dep}
	ast.PreOrderVisit(expression, ast.NewExprVisitor(found.visit))
	switch {
	case found.err != nil:
		return 0, found.err
	case found.nodes > maxNodes || found.generic > maxGeneric:
		return 0, errors.New("it is too complex: it has too many operators, function calls or lists")
	case found.pattern > maxPattern || found.instructions > maxInstructions:
		return 0, errors.New("its regular expressions are too large")
	}
	return int64(programOverhead + found.nodes*nodeSize + found.instructions*instructionSize), nil
}

func (i *inspection) visit(node ast.Expr) {
	i.nodes++
	switch node.Kind() {
	case ast.ListKind, ast.MapKind:
		i.generic++
	case ast.StructKind:
		i.refuse(errors.New("it cannot make messages"))
	case ast.ComprehensionKind:
		loop := node.AsComprehension()
		for _, name := range []string{loop.IterVar(), loop.IterVar2()} {
			if slices.Contains(variables, name) {
				i.refuse(fmt.Errorf("%s cannot be the name of another variable", name))
			}
		}
	case ast.CallKind:
		i.visitCall(node)
	case ast.IdentKind:
		if name := node.AsIdent(); slices.Contains(variables, name) {
			i.refuse(i.dep.has(name))
		}
	case ast.SelectKind:
		i.refuse(i.dep.readable(pathOf(node)))
	}
}

func (i *inspection) visitCall(node ast.Expr) {
	call := node.AsCall()
	switch name := call.FunctionName(); name {
	case operators.LogicalNot, operators.LogicalAnd, operators.LogicalOr, operators.NotStrictlyFalse:
	case operators.Index, operators.OptIndex, operators.OptSelect:
		i.generic++
		i.refuse(i.dep.readable(pathOf(node)))
	case functionMatches:
		var pattern *string
		if args := call.Args(); len(args) > 0 {
			pattern = textLiteral(args[len(args)-1])
		}
		if pattern == nil {
			i.refuse(errors.New("the regular expression of matches() must be a text, not a value"))
			return
		}
		i.pattern += len(*pattern)
		if i.pattern <= maxPattern {
			instructions, err := instructionsOf(*pattern)
			i.instructions += instructions
			i.refuse(err)
		}
	default:
		i.generic++
	}
}

// refuse records the first mistake.
func (i *inspection) refuse(err error) {
	if i.err == nil {
		i.err = err
	}
}

func textLiteral(node ast.Expr) *string {
	if node.Kind() != ast.LiteralKind {
		return nil
	}
	text, isText := node.AsLiteral().(types.String)
	if !isText {
		return nil
	}
	return (*string)(&text)
}

// pathOf returns the path that the node reads, such as "dep.status.conditions", and "" when the node does not read a field of a variable.
func pathOf(node ast.Expr) string {
	operand, field := "", ""
	switch node.Kind() {
	case ast.IdentKind:
		if name := node.AsIdent(); slices.Contains(variables, name) {
			return name
		}
	case ast.SelectKind:
		operand, field = pathOf(node.AsSelect().Operand()), node.AsSelect().FieldName()
	case ast.CallKind:
		call := node.AsCall()
		indexes := []string{operators.Index, operators.OptIndex, operators.OptSelect}
		if slices.Contains(indexes, call.FunctionName()) && len(call.Args()) == 2 {
			if key := textLiteral(call.Args()[1]); key != nil {
				operand, field = pathOf(call.Args()[0]), *key
			}
		}
	}
	if operand == "" {
		return ""
	}
	return operand + "." + field
}

// instructionsOf returns how many instructions the compiled regular expression has at most, without compiling it. It rejects Unicode: a
// Unicode class takes kilobytes for three bytes of a pattern, and a range in (?i) takes milliseconds.
func instructionsOf(pattern string) (int, error) {
	for _, char := range []byte(pattern) {
		if char >= 0x80 {
			return 0, fmt.Errorf("the regular expression %q has a character that is not ASCII", Shorten(pattern))
		}
	}
	if strings.Contains(pattern, `\x{`) {
		return 0, fmt.Errorf(`the regular expression %q has \x{…}, which is not allowed`, Shorten(pattern))
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl&^syntax.UnicodeGroups)
	if err != nil {
		return 0, fmt.Errorf("the regular expression %q cannot be used: %w", Shorten(pattern), err)
	}
	return 2 + instructionsIn(parsed), nil
}

func instructionsIn(parsed *syntax.Regexp) int {
	count := 2
	if parsed.Op == syntax.OpLiteral {
		count += len(parsed.Rune)
	}
	for _, sub := range parsed.Sub {
		count += instructionsIn(sub)
	}
	if parsed.Op == syntax.OpRepeat {
		count *= max(parsed.Min, parsed.Max, 1) + 1
	}
	// The cap is above every bound, and keeps the multiplication far from an overflow.
	return min(count, 1<<20)
}
