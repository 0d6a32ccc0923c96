package design_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// controllers are the packages whose files keep to what their names say: observe*.go reads, decide*.go chooses, act*.go acts.
var controllers = []string{"internal/stack", "internal/update", "internal/workspace"}

// phases are the rules, by how the names of the files begin.
var phases = map[string]struct {
	// imports and calls are those that a file must not have; a call is told by the name of the function or method alone.
	imports, calls []string
	// values are types of which it must not make any.
	values []string
}{
	"observe": {
		calls: []string{"Create", "Update", "Patch", "Apply", "Delete", "DeleteAllOf", "Event", "Eventf", "AnnotatedEventf",
			"MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled", "decide"},
		values: []string{"decision"},
	},
	"decide": {
		imports: []string{"context", "os", "net", "net/http", "sync", "sigs.k8s.io/controller-runtime", "sigs.k8s.io/controller-runtime/pkg/client",
			"k8s.io/client-go/tools/record"},
		calls: []string{"Now", "Since", "Until", "MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled"},
	},
	"act": {calls: []string{"decide"}, values: []string{"decision"}},
}

func TestObservingDecidingAndActingAreApart(t *testing.T) {
	g := NewWithT(t)
	checked := map[string]int{}
	for _, directory := range controllers {
		files, err := filepath.Glob(filepath.Join(inRepository(directory), "*.go"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			phase, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".go"), "_")
			if _, ruled := phases[phase]; !ruled || strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			g.Expect(err).NotTo(HaveOccurred())
			checked[phase]++
			for _, found := range violations(phase, parsed) {
				t.Errorf("%s/%s must not have %s", directory, filepath.Base(file), found)
			}
		}
	}
	for phase := range phases {
		g.Expect(checked[phase]).NotTo(BeZero(), phase)
	}
}

// The rules would find what they are there for.
func TestFilesThatMixObservingDecidingAndActingAreFound(t *testing.T) {
	g := NewWithT(t)
	for phase, mixed := range map[string]string{
		"observe": "func (r *R) observe() { r.Status().Patch(nil) }",
		"decide":  `import "context"; func decide(ctx context.Context) {}`,
		"act":     "func act() { again(decision{}) }",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+mixed, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(violations(phase, parsed)).To(HaveLen(1), phase)
	}
}

// violations names what the file has and must not have.
func violations(phase string, file *ast.File) (found []string) {
	rules := phases[phase]
	for _, spec := range file.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err != nil || slices.Contains(rules.imports, path) {
			found = append(found, "the import "+spec.Path.Value)
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CallExpr:
			if name := calledName(node.Fun); slices.Contains(rules.calls, name) {
				found = append(found, "a call of "+name)
			}
		case *ast.CompositeLit:
			if name, ok := node.Type.(*ast.Ident); ok && slices.Contains(rules.values, name.Name) {
				found = append(found, "a "+name.Name)
			}
		}
		return true
	})
	return found
}

// calledName is the name of a function or method, without what is before the dot.
func calledName(function ast.Expr) string {
	switch function := function.(type) {
	case *ast.Ident:
		return function.Name
	case *ast.SelectorExpr:
		return function.Sel.Name
	}
	return ""
}
