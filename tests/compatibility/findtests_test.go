package compatibility_test

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
	"api":           "tests/api",
	"automation":    "internal/agent/automation",
	"backends":      "tests/backends",
	"compatibility": "tests/compatibility",
	"e2e":           "tests/e2e",
	"git":           "internal/git",
	"pods":          "tests/pods",
	"program":       "internal/program",
	"source":        "internal/source",
	"sources":       "tests/sources",
	"stack":         "internal/stack",
	"update":        "internal/update",
	"workspace":     "internal/workspace",
}

// findTests parses the packages. It returns the file of each test function, and of each name that a literal in its file could give
// one of its subtests.
func findTests(t *testing.T) map[string]string {
	g := NewWithT(t)
	found := map[string]string{}
	for name, dir := range testedIn {
		files, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(dir), "*_test.go"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			g.Expect(err).NotTo(HaveOccurred())
			literals := stringsIn(file)
			for _, declaration := range file.Decls {
				function, ok := declaration.(*ast.FuncDecl)
				if !ok || function.Recv != nil || !strings.HasPrefix(function.Name.Name, "Test") {
					continue
				}
				test, place := name+"."+function.Name.Name, dir+"/"+filepath.Base(path)
				found[test] = place
				for _, literal := range literals {
					found[test+"/"+literal] = place
				}
			}
		}
	}
	return found
}

// stringsIn lists the values of the string literals of a file.
func stringsIn(file *ast.File) (values []string) {
	ast.Inspect(file, func(node ast.Node) bool {
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if value, err := strconv.Unquote(literal.Value); err == nil {
				values = append(values, value)
			}
		}
		return true
	})
	return values
}
