package design_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// controllers are the packages with a function decide. Those in which something is read for it have a function observe.
var controllers = []string{"internal/controller/stack", "internal/controller/update", "internal/controller/workspace", "internal/controller/approval", "internal/agentruntime/pod"}

// part is a part of a reconcile: the functions of a package that its first functions call, and what none of them may do.
type part struct {
	first []string
	// calls must not appear. A call is identified by the name of the function or method alone, or with the name before the dot.
	calls []string
	// pure functions have no context, and write to nothing but their own variables.
	pure bool
}

var parts = map[string]part{
	"reading": {
		first: []string{"observe", "observeAgent", "observeContent"},
		calls: []string{
			"Create", "Patch", "Apply", "Delete", "DeleteAllOf", "Event", "Eventf", "AnnotatedEventf", // written to the API server
			"MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled", // written to the object
			"Wake", "Awake", "turns.ask", "turns.hold", "turns.leave", "rollout.begin", "rollout.end", "background.ensure", "forgetDelivery", // slots, agents, work in the background
			"decide",
		},
	},
	"deciding": {
		first: []string{"decide"}, pure: true,
		calls: []string{"Now", "Since", "Until", "MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled"},
	},
}

// exempt are functions that a part may call although they do what it must not.
var exempt = map[string]string{
	"restoreStatus": "reading the source needs the status as it should be, and repairs a copy of it",
}

func TestReadingAndDecidingChangeNothing(t *testing.T) {
	g := NewWithT(t)
	for _, directory := range controllers {
		files, err := filepath.Glob(filepath.Join(inRepository(directory), "*.go"))
		g.Expect(err).NotTo(HaveOccurred())
		var parsed []*ast.File
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			one, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			g.Expect(err).NotTo(HaveOccurred())
			parsed = append(parsed, one)
		}
		for name, rules := range parts {
			found, functions := rules.violations(parsed)
			t.Logf("%s: %s: %d functions", directory, name, functions)
			g.Expect(functions > 0 || name == "reading").To(BeTrue(), "%s has no function for %s", directory, name)
			for _, violation := range found {
				t.Errorf("%s: %s: %s", directory, name, violation)
			}
		}
	}
}

// This test checks that the rules find violations, also in the functions that others call.
func TestPartsThatChangeSomethingAreFound(t *testing.T) {
	g := NewWithT(t)
	for source, wanted := range map[string]string{
		"func (r *R) observe() { r.more() }; func (r *R) more() { r.Status().Patch(nil) }":          "more calls Patch",
		"func observe(o *O) { o.stack.Status.Plan = nil }":                                          "observe writes to a status",
		"func decide(o O) { why(o) }; func why(o O) { o.stack.Status.Plan = nil }":                  "why writes to what it was given",
		"func decide(o *O) { o.now = 0 }":                                                           "decide writes to what it was given",
		"func decide(ctx context.Context) {}":                                                       "decide has a context",
		"func decide(o O) { time.Now() }":                                                           "decide calls Now",
		"func observe(o *O) { o.now = 0 }; func decide(o O) { o.now = 1; p := o.plan; p.name = 1 }": "",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+source, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		var all []string
		for _, rules := range parts {
			found, _ := rules.violations([]*ast.File{parsed})
			all = append(all, found...)
		}
		g.Expect(strings.Join(all, "; ")).To(Equal(wanted), source)
	}
}

// violations returns what the functions of the part do although they must not, and how many functions there are.
func (p part) violations(files []*ast.File) (found []string, functions int) {
	declared := map[string][]*ast.FuncDecl{} // methods of several types may have one name
	for _, file := range files {
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok {
				name := function.Name.Name
				if function.Recv != nil {
					name = "." + name
				}
				declared[name] = append(declared[name], function)
			}
		}
	}
	seen := map[string]bool{}
	next := slices.Clone(p.first)
	for _, name := range p.first {
		next = append(next, "."+name)
	}
	for ; len(next) > 0; next = next[1:] {
		name := next[0]
		if seen[name] || exempt[name] != "" {
			continue
		}
		seen[name] = true
		for _, function := range declared[name] {
			functions++
			called, wrong := p.check(function)
			next = append(next, called...)
			for _, what := range wrong {
				found = append(found, strings.TrimPrefix(name, ".")+" "+what)
			}
		}
	}
	return found, functions
}

// check returns what the function calls, and what it must not do.
func (p part) check(function *ast.FuncDecl) (called, wrong []string) {
	pointers, given := parametersOf(function)
	if p.pure && given["ctx"] {
		wrong = append(wrong, "has a context")
	}
	ast.Inspect(function, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CallExpr:
			root, path := selected(node.Fun)
			if len(path) == 0 {
				called = append(called, root)
				path = []string{root}
			} else {
				called = append(called, "."+path[len(path)-1])
			}
			name, of := path[len(path)-1], strings.Join(path[max(0, len(path)-2):], ".")
			if slices.Contains(p.calls, name) || slices.Contains(p.calls, of) {
				wrong = append(wrong, "calls "+name)
			}
		case *ast.AssignStmt:
			for _, target := range node.Lhs {
				root, path := selected(target)
				switch {
				case !p.pure && slices.Contains(path, "Status"):
					wrong = append(wrong, "writes to a status")
				case p.pure && (given[root] && len(path) > 1 || pointers[root] && len(path) > 0):
					wrong = append(wrong, "writes to what it was given")
				}
			}
		}
		return true
	})
	return called, wrong
}

// parametersOf returns the names of the parameters of a function and of its receiver, and of those that are pointers.
func parametersOf(function *ast.FuncDecl) (pointers, all map[string]bool) {
	pointers, all = map[string]bool{}, map[string]bool{}
	fields := slices.Clone(function.Type.Params.List)
	if function.Recv != nil {
		fields = append(fields, function.Recv.List...)
	}
	for _, field := range fields {
		_, pointer := field.Type.(*ast.StarExpr)
		for _, name := range field.Names {
			all[name.Name] = true
			pointers[name.Name] = pointer
		}
	}
	return pointers, all
}

// selected returns the variable of an expression such as o.stack.Status, and the names of the fields: stack, Status.
func selected(expression ast.Expr) (root string, path []string) {
	switch expression := expression.(type) {
	case *ast.Ident:
		return expression.Name, nil
	case *ast.CallExpr:
		return selected(expression.Fun)
	case *ast.SelectorExpr:
		root, path = selected(expression.X)
		return root, append(path, expression.Sel.Name)
	case *ast.IndexExpr:
		return selected(expression.X)
	case *ast.StarExpr:
		root, path = selected(expression.X)
		return root, append(path, "*")
	}
	return "", nil
}
