package security_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// attacksIn is the package with the attacks.
const attacksIn = "tests/tenancy"

// attack is what the page says about one.
type attack struct{ name, promise, does, sees, file string }

// parse returns the test files of a directory by their names, relative to the root of the repository.
func parse(t *testing.T, dir string) map[string]*ast.File {
	g := NewWithT(t)
	paths, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(dir), "*_test.go"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(paths).NotTo(BeEmpty(), dir)
	files := map[string]*ast.File{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		files[filepath.ToSlash(filepath.Join(dir, filepath.Base(path)))] = file
	}
	return files
}

// findAttacks reads the tables of attacks, in the order in which attacks() has them.
func findAttacks(t *testing.T) []attack {
	tables := map[string][]attack{}
	var order []string
	for name, file := range parse(t, attacksIn) {
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.ValueSpec:
				if len(node.Values) == 1 {
					tables[node.Names[0].Name] = attacksOf(node.Values[0], name)
				}
			case *ast.FuncDecl:
				if node.Name.Name == "attacks" {
					order = identifiersIn(node.Body)
				}
			}
			return true
		})
	}
	var all []attack
	for _, table := range order {
		all = append(all, tables[table]...)
	}
	return all
}

// attacksOf reads the attacks of one table; none of what is something else.
func attacksOf(value ast.Expr, file string) (found []attack) {
	list, ok := value.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, element := range list.Elts {
		literal, ok := element.(*ast.CompositeLit)
		if !ok {
			continue
		}
		fields := map[string]string{}
		for _, field := range literal.Elts {
			if pair, ok := field.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok {
					fields[key.Name] = text(pair.Value)
				}
			}
		}
		if fields["does"] != "" {
			found = append(found, attack{name: fields["name"], promise: fields["promise"], does: fields["does"], sees: fields["sees"], file: file})
		}
	}
	return found
}

// text is a string, or several that are added.
func text(value ast.Expr) string {
	switch value := value.(type) {
	case *ast.BasicLit:
		if unquoted, err := strconv.Unquote(value.Value); err == nil && value.Kind == token.STRING {
			return unquoted
		}
	case *ast.BinaryExpr:
		return text(value.X) + text(value.Y)
	}
	return ""
}

func identifiersIn(node ast.Node) (names []string) {
	ast.Inspect(node, func(node ast.Node) bool {
		if name, ok := node.(*ast.Ident); ok {
			names = append(names, name.Name)
		}
		return true
	})
	return names
}
