// Package pages keeps pages of the documentation equal to tables in tests, and finds the tests that the tables name.
package pages

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Keep expects that a file of the repository has the text; with write it first writes the file. The command in the error message is the one
// that writes the file.
func Keep(t *testing.T, name, text, command string, write bool) {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(name))
	if write {
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
	}
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content) == text).To(BeTrue(), "%s is not what the rows say; run: %s", name, command)
}

// Cell formats text for a cell of a table.
func Cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// Links returns links to the tests. root is the path from the page to the root of the repository.
func (a *Tests) Links(t *testing.T, names []string, root string) string {
	t.Helper()
	var all []string
	for _, name := range names {
		file, found := a.File(name)
		if !found {
			t.Errorf("there is no test %s", name)
			continue
		}
		_, short, _ := strings.Cut(name, ".")
		all = append(all, fmt.Sprintf("[%s](%s%s)%s", Cell(short), root, file, a.Mark(name)))
	}
	return strings.Join(all, "<br>")
}

// Mark returns the text after the link to a test: empty, or a note that the test is only in the long suite.
func (a *Tests) Mark(name string) string {
	if a.Long(name) {
		return " (long)"
	}
	return ""
}

// AboutMarks returns the explanation of the mark. root is the path from the page to the root of the repository.
func AboutMarks(root string) string {
	return fmt.Sprintf("Tests marked (long) run only in the [long suite](%sCONTRIBUTING.md#tests).", root)
}

// Declaration is a function, variable or constant of the tests of a package.
type Declaration struct {
	file string
	// Literals are the strings in the declaration, Selected the names after a dot together with the name before it, and names all other
	// names that it uses.
	Literals, Selected, names map[string]bool
}

// Tests holds the declarations of all test files. A key is the name of the directory, a dot and the name of the declaration. Declarations
// with the same key are merged.
type Tests struct {
	declared map[string]*Declaration
}

// FindTests parses the test files of the repository. Of two directories with the same name, the one with the shorter path is used.
func FindTests(t *testing.T) *Tests {
	t.Helper()
	g := NewWithT(t)
	all := &Tests{declared: map[string]*Declaration{}}
	directories := map[string]string{}
	root := tools.RepositoryRoot()
	for _, top := range []string{"internal", "tests"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, top), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, "_test.go") {
				return err
			}
			relative, err := filepath.Rel(root, filepath.Dir(file))
			dir := filepath.ToSlash(relative)
			if known := directories[path.Base(dir)]; known == "" || len(dir) < len(known) {
				directories[path.Base(dir)] = dir
			}
			return err
		})).To(Succeed())
	}
	for name, dir := range directories {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*_test.go"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			g.Expect(err).NotTo(HaveOccurred())
			for _, node := range parsed.Decls {
				all.add(name, dir+"/"+filepath.Base(file), node)
			}
		}
	}
	return all
}

func (a *Tests) add(name, place string, node ast.Decl) {
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

func (a *Tests) addNode(key, place string, node ast.Node) {
	d := a.declared[key]
	if d == nil {
		d = &Declaration{file: place, Literals: map[string]bool{}, Selected: map[string]bool{}, names: map[string]bool{}}
		a.declared[key] = d
	}
	ast.Inspect(node, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(node.Value); err == nil && node.Kind == token.STRING {
				d.Literals[text] = true
			}
		case *ast.SelectorExpr:
			if of, ok := node.X.(*ast.Ident); ok {
				d.Selected[of.Name+"."+node.Sel.Name] = true
			}
		case *ast.Ident:
			d.names[node.Name] = true
		}
		return true
	})
}

// Uses reports whether the function is true for the test, or for a declaration in its package that the test uses, directly or not.
func (a *Tests) Uses(test string, is func(*Declaration) bool) bool {
	return a.visit(test, map[string]bool{}, is)
}

func (a *Tests) visit(key string, seen map[string]bool, is func(*Declaration) bool) bool {
	d := a.declared[key]
	if d == nil || seen[key] {
		return false
	}
	seen[key] = true
	if is(d) {
		return true
	}
	pkg, _, _ := strings.Cut(key, ".")
	for name := range d.names {
		if a.visit(pkg+"."+name, seen, is) {
			return true
		}
	}
	return false
}

// File returns the file of a test such as "e2e.TestName" or "e2e.TestName/subtest", and whether the test exists. The name of a subtest has
// to be a string that the test uses.
func (a *Tests) File(name string) (string, bool) {
	test, subtest, _ := strings.Cut(name, "/")
	d := a.declared[test]
	_, function, _ := strings.Cut(test, ".")
	if d == nil || !strings.HasPrefix(function, "Test") {
		return "", false
	}
	return d.file, subtest == "" || a.Uses(test, func(d *Declaration) bool { return d.Literals[subtest] })
}

// Long reports whether a test such as "e2e.TestName" is only in the long suite (see tests/framework/suite).
func (a *Tests) Long(name string) bool {
	test, _, _ := strings.Cut(name, "/")
	pkg, _, _ := strings.Cut(test, ".")
	all := a.declared[pkg+".TestMain"]
	return all != nil && all.Selected["suite.LongPackage"] || a.Uses(test, func(d *Declaration) bool { return d.Selected["suite.Long"] })
}
