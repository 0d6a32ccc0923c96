package program

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// shape is what a place in a program may hold. Everything that is not set is not checked.
type shape struct {
	// want says what is expected, for messages: "must be " + want.
	want string
	// accepts tells whether the value itself is right; nil accepts every one.
	accepts func(value any) bool
	// fields of an object that has no others; required ones have to be there.
	fields   map[string]*shape
	required []string
	// hints say for fields that an object does not have where what they stand for is set.
	hints map[string]string
	// values is the shape of what an object has under keys of any name, items that of the elements of a list.
	values, items *shape
	// also checks what the shapes of the parts cannot say.
	also func(c *checker, path string, value any)
	// literal is set where ${…} means nothing.
	literal bool
}

// checker collects problems.
type checker struct {
	problems []Problem
}

func (c *checker) report(path, format string, args ...any) {
	const longest = 1000 // of a message that a condition has to hold
	if over := len(path) - longest; over > 0 {
		path = root + "…" + strings.ToValidUTF8(path[over:], "")
	}
	c.problems = append(c.problems, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// check reports what is wrong with a value at a path.
func (c *checker) check(path string, value any, want *shape, depth int) {
	if depth > maxDepth {
		c.report(path, "is nested more than %d levels deep", maxDepth)
		return
	}
	if want.accepts != nil && !want.accepts(value) {
		c.report(path, "must be %s", want.want)
		return
	}
	switch value := value.(type) {
	case string:
		if problem := expressionProblem(value); problem != "" && !want.literal {
			c.report(path, "%s", problem)
		}
	case []any:
		items := want.items
		if items == nil {
			items = inherited(want)
		}
		for i, item := range value {
			c.check(fmt.Sprintf("%s[%d]", path, i), item, items, depth+1)
		}
	case map[string]any:
		c.checkObject(path, value, want, depth)
	}
	if want.also != nil {
		want.also(c, path, value)
	}
}

func (c *checker) checkObject(path string, object map[string]any, want *shape, depth int) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		at := join(path, key)
		if problem := expressionProblem(key); want.fields == nil && problem != "" && !want.literal {
			c.report(at, "in its name, %s", problem)
		}
		part := want.values
		if want.fields != nil {
			part = want.fields[key]
		} else if part == nil {
			part = inherited(want)
		}
		if part == nil {
			c.report(at, "%s", unknownField(key, want))
			continue
		}
		c.check(at, object[key], part, depth+1)
	}
	for _, key := range want.required {
		if _, found := object[key]; !found {
			c.report(join(path, key), "is required")
		}
	}
}

// inherited is the shape of the parts of a value that may be anything.
func inherited(want *shape) *shape {
	if want.literal {
		return anything
	}
	return expression
}

// unknownField says that there is no such field, and which one may be meant.
func unknownField(key string, want *shape) string {
	if hint := want.hints[key]; hint != "" {
		return "cannot be set: " + hint
	}
	best, distance := "", 3
	for _, name := range slices.Sorted(maps.Keys(want.fields)) {
		if strings.EqualFold(name, key) {
			best = name
			break
		}
		if d := editDistance(strings.ToLower(name), strings.ToLower(key)); d < distance && d < len(name) {
			best, distance = name, d
		}
	}
	if best != "" {
		return fmt.Sprintf("unknown field, did you mean %q?", best)
	}
	return "unknown field"
}

// maxWord is the most characters of words that are compared.
const maxWord = 64

// editDistance is the number of characters to insert, remove or replace to make one word of the other.
func editDistance(from, to string) int {
	if len(from) > maxWord || len(to) > maxWord {
		return maxWord
	}
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(from) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(to) {
			replaced := diagonal
			if from[i] != to[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(to)]
}

var pathElement = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// join appends a key to a path; a key that is no name is quoted, and a long one is cut.
func join(path, key string) string {
	const longest = 100
	if len(key) > longest {
		key = strings.ToValidUTF8(key[:longest], "") + "…"
	}
	if pathElement.MatchString(key) {
		return path + "." + key
	}
	return fmt.Sprintf("%s[%q]", path, key)
}

func isText(value any) bool     { _, ok := value.(string); return ok }
func isNonEmpty(value any) bool { text, ok := value.(string); return ok && text != "" }
func isBoolean(value any) bool  { _, ok := value.(bool); return ok }
func isObject(value any) bool   { _, ok := value.(map[string]any); return ok }
func isList(value any) bool     { _, ok := value.([]any); return ok }

func isInteger(value any) bool {
	number, ok := value.(json.Number)
	if !ok || len(number) > maxWord {
		return false
	}
	float, _, err := big.ParseFloat(number.String(), 10, 256, big.ToNearestEven)
	return err == nil && float.IsInt()
}

func anyOf(accepts ...func(any) bool) func(any) bool {
	return func(value any) bool {
		return slices.ContainsFunc(accepts, func(accept func(any) bool) bool { return accept(value) })
	}
}
