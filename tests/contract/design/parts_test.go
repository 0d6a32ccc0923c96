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

// controllers are the packages with a function decide, and whether they have functions that read for it.
var controllers = map[string]bool{
	"internal/controller/stack": true, "internal/controller/update": true, "internal/controller/approval": true, "internal/agentruntime/pod": true,
	"internal/controller/workspace": false,
}

// part is a part of a reconcile: the functions of a package that its first functions use, and what none of them may do.
type part struct {
	first []string
	// calls must not appear. A call is identified by the name of the function or method alone, or with the name before the dot.
	calls []string
	// computes is true for functions without a context. pure is true for functions that, besides, write to nothing but their own variables.
	computes, pure bool
}

// writes are calls that write to the API server, or to an object in memory.
func writes() (calls []string) {
	for _, verb := range []string{"Create", "Update", "Patch", "Apply", "Delete", "DeleteAllOf"} {
		calls = append(calls, "r."+verb, "Client."+verb, "Status."+verb)
	}
	return append(calls, "patch.Status", "patch.Object", "Event", "Eventf", "AnnotatedEventf",
		"MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled", "conditions.Set", "conditions.Delete",
		"AddFinalizer", "RemoveFinalizer")
}

var parts = map[string]part{
	"reading": {
		first: []string{"observe", "observeAgent", "observeContent"},
		// After the writes: slots, agents, and work in the background.
		calls: append(writes(), "Wake", "turns.ask", "turns.hold", "turns.leave", "rollout.begin", "rollout.end", "background.ensure", "forgetDelivery", "decide"),
	},
	"repairing": {first: []string{"repair"}, computes: true, calls: []string{"Now", "Since", "Until", "decide"}},
	"deciding":  {first: []string{"decide", "decideOnDrift"}, computes: true, pure: true, calls: append(writes(), "Now", "Since", "Until")},
}

// exempt are functions that a part may use although they do what it must not.
var exempt = map[string]string{
	"restoreStatus": "what is read depends on the status as it should be, so a copy of it is repaired for reading",
}

func TestReadingAndDecidingChangeNothing(t *testing.T) {
	g := NewWithT(t)
	for directory, reads := range controllers {
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
			t.Logf("%s: %s: %d functions", directory, name, len(functions))
			g.Expect(len(functions) > 0 || name == "repairing" || name == "reading" && !reads).To(BeTrue(), "%s has no function for %s", directory, name)
			if directory == "internal/controller/stack" && name == "reading" {
				g.Expect(functions).To(HaveKey(".observeSource"), "functions that are not called by their names are looked at, too")
			}
			for _, violation := range found {
				t.Errorf("%s: %s: %s", directory, name, violation)
			}
		}
	}
}

// This test checks that the rules find violations, also in the functions that others use.
func TestPartsThatChangeSomethingAreFound(t *testing.T) {
	g := NewWithT(t)
	for source, wanted := range map[string]string{
		"func (r *R) observe() { r.more() }; func (r *R) more() { r.Status().Patch(nil) }":                                  "more calls Patch",
		"func (r *R) observe() { for _, read := range []any{r.more} { read() } }; func (r *R) more() { patch.Status(nil) }": "more calls Status",
		"func observe(o *O) { o.stack.Status.Plan = nil }":                                                                  "observe writes to a status",
		"func observe(o *O) { status := &o.stack.Status; status.Plan = nil }":                                               "observe writes to a status",
		"func (r *R) observe() { r.turns.ask() }":                                                                           "observe calls ask",
		"func decide(o O) { why(o) }; func why(o O) { o.stack.Status.Plan = nil }":                                          "why writes to what it was given",
		"func decide(o *O) { o.now = 0 }":                                                                                   "decide writes to what it was given",
		"func decide(o O) { plan := &o.stack.plan; plan.name = 1 }":                                                         "decide writes to what it was given",
		"func decide(o O) { o.approvals[0] = nil }":                                                                         "decide writes to what it was given",
		"func decide(o O) { o.stack.count++ }":                                                                              "decide writes to what it was given",
		"func decide(c context.Context) {}":                                                                                 "decide has a context",
		"func repair(o *O) { more(nil) }; func more(c context.Context) {}":                                                  "more has a context",
		"func decide(o O) { time.Now() }":                                                                                   "decide calls Now",
		"func observe(o *O) { o.now = 0 }; func repair(o *O) { o.stack.Status.Plan = nil }; func decide(o O) { o.now = 1 }": "",
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

// violations returns what the functions of the part do although they must not, and which functions these are.
func (p part) violations(files []*ast.File) (found []string, functions map[string]bool) {
	declared := map[string][]*ast.FuncDecl{} // the names of methods begin with a dot; those of several types may be the same
	fields := map[string]bool{}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if structure, ok := node.(*ast.StructType); ok {
				for _, field := range structure.Fields.List {
					for _, name := range field.Names {
						fields["."+name.Name] = true
					}
				}
			}
			return true
		})
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
	next := slices.Clone(p.first)
	for _, name := range p.first {
		next = append(next, "."+name)
	}
	functions = map[string]bool{}
	for ; len(next) > 0; next = next[1:] {
		name := next[0]
		if functions[name] || p.first[0] == "observe" && exempt[name] != "" {
			continue
		}
		for _, function := range declared[name] {
			functions[name] = true
			called, named, wrong := p.check(function)
			// A name after a dot that is not called may be that of a field.
			next = append(append(next, called...), slices.DeleteFunc(named, func(name string) bool { return fields[name] })...)
			for _, what := range wrong {
				found = append(found, strings.TrimPrefix(name, ".")+" "+what)
			}
		}
	}
	return found, functions
}

// check returns the names that the function calls, all names in it, and what it must not do.
func (p part) check(function *ast.FuncDecl) (called, named, wrong []string) {
	pointers, given, context := parametersOf(function)
	statuses := map[string]bool{} // variables that point into a status
	if p.computes && context {
		wrong = append(wrong, "has a context")
	}
	write := func(target ast.Expr) {
		root, path := selected(target)
		switch {
		case !p.computes && (slices.Contains(path, "Status") || statuses[root] && len(path) > 0):
			wrong = append(wrong, "writes to a status")
		case p.pure && (given[root] && len(path) > 1 || pointers[root] && len(path) > 0):
			wrong = append(wrong, "writes to what it was given")
		}
	}
	ast.Inspect(function.Body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.Ident:
			named = append(named, node.Name)
		case *ast.SelectorExpr:
			named = append(named, "."+node.Sel.Name)
		case *ast.CallExpr:
			root, path := selected(node.Fun)
			if len(path) > 0 {
				called = append(called, "."+path[len(path)-1])
			}
			path = append([]string{root}, path...)
			name, of := path[len(path)-1], strings.Join(path[max(0, len(path)-2):], ".")
			if slices.Contains(p.calls, name) || slices.Contains(p.calls, of) {
				wrong = append(wrong, "calls "+name)
			}
		case *ast.IncDecStmt:
			write(node.X)
		case *ast.AssignStmt:
			for i, target := range node.Lhs {
				write(target)
				name, isName := target.(*ast.Ident)
				if address, ok := node.Rhs[min(i, len(node.Rhs)-1)].(*ast.UnaryExpr); ok && isName && address.Op == token.AND {
					root, path := selected(address.X)
					pointers[name.Name] = pointers[name.Name] || given[root] && len(path) > 0
					statuses[name.Name] = statuses[name.Name] || slices.Contains(path, "Status")
				}
			}
		}
		return true
	})
	return called, named, wrong
}

// parametersOf returns the names of the parameters of a function and of its receiver, those that are pointers, and whether one is a context.
func parametersOf(function *ast.FuncDecl) (pointers, all map[string]bool, context bool) {
	pointers, all = map[string]bool{}, map[string]bool{}
	fields := slices.Clone(function.Type.Params.List)
	if function.Recv != nil {
		fields = append(fields, function.Recv.List...)
	}
	for _, field := range fields {
		_, pointer := field.Type.(*ast.StarExpr)
		if root, path := selected(field.Type); root == "context" && slices.Equal(path, []string{"Context"}) {
			context = true
		}
		for _, name := range field.Names {
			all[name.Name] = true
			pointers[name.Name] = pointer
		}
	}
	return pointers, all, context
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
		root, path = selected(expression.X)
		return root, append(path, "[]")
	case *ast.StarExpr:
		root, path = selected(expression.X)
		return root, append(path, "*")
	}
	return "", nil
}
