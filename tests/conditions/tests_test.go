package conditions_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// testedIn are the packages, by the names under which rows speak of them.
var testedIn = map[string]string{
	"backends":      "tests/backends",
	"compatibility": "tests/compatibility",
	"e2e":           "tests/e2e",
	"main":          ".",
	"pod":           "internal/runtime/pod",
	"pods":          "tests/pods",
	"program":       "internal/program",
	"stack":         "internal/stack",
	"update":        "internal/update",
	"workspace":     "internal/workspace",
}

// declaration is a function, variable or constant of the tests of a package.
type declaration struct {
	file string
	// literals are the strings in it, selected the names after a dot with the one before it, and names all others that it uses.
	literals, selected, names map[string]bool
}

// tests are the declarations of all packages, by the name of the package, a dot and their own. Those of one name are one.
type tests struct {
	declared map[string]*declaration
}

// findTests parses the packages.
func findTests(t *testing.T) *tests {
	g := NewWithT(t)
	all := &tests{declared: map[string]*declaration{}}
	for name, dir := range testedIn {
		files, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(dir), "*_test.go"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).NotTo(BeEmpty(), dir)
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			g.Expect(err).NotTo(HaveOccurred())
			place := filepath.ToSlash(filepath.Join(dir, filepath.Base(path)))
			for _, node := range file.Decls {
				all.add(name, place, node)
			}
		}
	}
	return all
}

func (a *tests) add(name, place string, node ast.Decl) {
	switch node := node.(type) {
	case *ast.FuncDecl:
		a.addNode(name+"."+node.Name.Name, place, node)
	case *ast.GenDecl:
		for _, spec := range node.Specs {
			if value, ok := spec.(*ast.ValueSpec); ok {
				for _, one := range value.Names {
					a.addNode(name+"."+one.Name, place, value)
				}
			}
		}
	}
}

func (a *tests) addNode(key, place string, node ast.Node) {
	d := a.declared[key]
	if d == nil {
		d = &declaration{file: place, literals: map[string]bool{}, selected: map[string]bool{}, names: map[string]bool{}}
		a.declared[key] = d
	}
	ast.Inspect(node, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(node.Value); err == nil && node.Kind == token.STRING {
				d.literals[text] = true
			}
		case *ast.SelectorExpr:
			if of, ok := node.X.(*ast.Ident); ok {
				d.selected[of.Name+"."+node.Sel.Name] = true
			}
		case *ast.Ident:
			d.names[node.Name] = true
		}
		return true
	})
}

// visit calls the function for a test and for all in its package that it uses, until that returns true, and tells whether it did.
func (a *tests) visit(test string, seen map[string]bool, found func(*declaration) bool) bool {
	d := a.declared[test]
	if d == nil || seen[test] {
		return false
	}
	seen[test] = true
	if found(d) {
		return true
	}
	pkg, _, _ := strings.Cut(test, ".")
	for name := range d.names {
		if a.visit(pkg+"."+name, seen, found) {
			return true
		}
	}
	return false
}

// file returns where the test is. A subtest has the name of a string that the test uses.
func (a *tests) file(test, subtest string) (string, bool) {
	d := a.declared[test]
	_, function, _ := strings.Cut(test, ".")
	if d == nil || !strings.HasPrefix(function, "Test") {
		return "", false
	}
	if subtest == "" {
		return d.file, true
	}
	return d.file, a.visit(test, map[string]bool{}, func(d *declaration) bool { return d.literals[subtest] })
}

// mentions tells whether the test, or something that it uses, names one of the constants or has the reason as a string.
func (a *tests) mentions(test, reason string, named []constant) bool {
	return a.visit(test, map[string]bool{}, func(d *declaration) bool {
		if d.literals[reason] {
			return true
		}
		for _, constant := range named {
			alias := declaredIn[constant.file]
			if d.selected[alias+"."+constant.name] || d.selected["meta."+constant.name] || alias == "" && d.names[constant.name] {
				return true
			}
		}
		return false
	})
}

func TestEveryReasonIsProvokedByATest(t *testing.T) {
	all, found := constants(t), findTests(t)
	for _, table := range tables {
		for _, row := range table.rows {
			if (row.state == notSet) == (len(row.tests) > 0) {
				t.Errorf("%s: %s has tests, unless it is never set", table.kind, row.reason)
			}
			var named []constant
			for _, one := range all {
				if one.reason == row.reason {
					named = append(named, one)
				}
			}
			for _, name := range row.tests {
				test, _, _ := strings.Cut(name, "/")
				if !found.mentions(test, row.reason, named) {
					t.Errorf("%s: %s does not name the reason %s", table.kind, name, row.reason)
				}
			}
		}
	}
}
