package program

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxName is how long the name of a Pulumi project may be.
const maxName = 100

// reservedName cannot be given to anything: ${pulumi.stack} and the like are the language's own.
const reservedName = "pulumi"

// check returns what is wrong with a program, in the order of its keys.
func check(project string, body map[string]any) []Problem {
	c := &checker{}
	if len(project) > maxName {
		c.report("metadata.name", "must not be longer than %d characters: it is the name of the Pulumi project", maxName)
	}
	c.check(root, body, programShape, 0)
	return c.problems
}

// checkNames finds names that stand for two things. Configuration is declared in two blocks, of which one takes precedence.
func checkNames(c *checker, path string, value any) {
	object, _ := value.(map[string]any)
	names := map[string]string{}
	for _, block := range []string{"config", "configuration", "inputs", "resources", "variables"} {
		entries, _ := object[block].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			other, taken := names[name]
			switch {
			case name == reservedName:
				c.report(join(path+"."+block, name), "the name is reserved")
			case taken && (other != "config" || block != "configuration"):
				c.report(join(path+"."+block, name), "%s has the same name", join(path+"."+other, name))
			default:
				names[name] = block
			}
		}
	}
}

// checkResource finds fields of a resource that exclude each other.
func checkResource(c *checker, path string, value any) {
	resource := value.(map[string]any)
	_, reads := resource["get"]
	properties, _ := resource["properties"].(map[string]any)
	if _, expression := resource["properties"].(string); reads && (expression || len(properties) > 0) {
		c.report(join(path, "get"), "a resource has either properties or get: properties are of one that is managed, get reads one that is not")
	}
	kind, _ := resource["type"].(string)
	if _, set := resource["defaultProvider"]; set && !strings.HasPrefix(kind, "pulumi:providers:") {
		c.report(join(path, "defaultProvider"), "is for providers only, whose type begins with pulumi:providers:")
	}
}

var listIndex = regexp.MustCompile(`^[+-]?[0-9]+$`)

// expressionProblem says what is wrong with the expressions in a string, ${name.property["key"][0]}; $$ is a dollar sign. It is
// empty when they are right.
func expressionProblem(text string) string {
	for {
		at := strings.IndexByte(text, '$')
		if at < 0 || at+1 == len(text) {
			return ""
		}
		text = text[at+1:]
		switch text[0] {
		case '$':
			text = text[1:]
		case '{':
			rest, problem := skipAccess(text[1:])
			if problem != "" {
				return problem
			}
			text = rest
		}
	}
}

// skipAccess returns what follows an expression whose ${ has been read.
func skipAccess(text string) (rest, problem string) {
	for first := true; text != ""; {
		switch text[0] {
		case '}':
			if first {
				return "", "an expression ${} is empty"
			}
			return text[1:], ""
		case '.':
			text = text[1:]
			continue
		case '[':
			if text, problem = skipSubscript(text[1:], first); problem != "" {
				return "", problem
			}
		default:
			end := strings.IndexAny(text, ".[}")
			if end < 0 {
				end = len(text)
			}
			text = text[end:]
		}
		first = false
	}
	return "", "an expression that begins with ${ has no end; write $${ for these characters themselves"
}

// skipSubscript returns what follows a subscript whose bracket has been read.
func skipSubscript(text string, first bool) (rest, problem string) {
	const open = "an expression ${…} has a bracket without end"
	if quoted, ok := strings.CutPrefix(text, `"`); ok {
		for i := 0; i < len(quoted); i++ {
			switch {
			case strings.HasPrefix(quoted[i:], `\"`):
				i++
			case quoted[i] == '"':
				if rest, ok := strings.CutPrefix(quoted[i+1:], "]"); ok {
					return rest, ""
				}
				return "", open
			}
		}
		return "", open
	}
	index, rest, closed := strings.Cut(text, "]")
	if !closed {
		return "", open
	}
	if _, err := strconv.Atoi(index); err != nil || !listIndex.MatchString(index) {
		return "", "an expression ${…} has a subscript that is neither a number nor in double quotes"
	}
	if first {
		return "", "an expression ${…} begins with a number"
	}
	return rest, ""
}
