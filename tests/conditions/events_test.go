package conditions_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

const troubleshooting = "../../docs/guides/troubleshooting.md"

// TestTroubleshootingExplainsEveryEvent is about events; tests/conditions is about the reasons of conditions.
func TestTroubleshootingExplainsEveryEvent(t *testing.T) {
	content, err := os.ReadFile(troubleshooting)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "\n## Events\n")
	NewWithT(t).Expect(found).To(BeTrue())
	explained, _, _ := strings.Cut(section, "\n## ")
	events := 0
	for _, file := range []string{"../../internal/program/*.go", "../../internal/stack/*.go", "../../internal/update/*.go", "../../internal/workspace/*.go"} {
		for constant, event := range stringConstants(t, file, beginsWith("event")) {
			events++
			if !strings.Contains(explained, "`"+event+"`") {
				t.Errorf("%s: %s (%s in %s) is not explained", troubleshooting, event, constant, file)
			}
		}
	}
	NewWithT(t).Expect(events).To(BeNumerically(">", 10))
}

func beginsWith(prefix string) func(string) bool {
	return func(constant string) bool { return strings.HasPrefix(constant, prefix) }
}

// stringConstants returns the constants of the files, tests left out, that are wanted, with their values.
func stringConstants(t *testing.T, pattern string, wanted func(string) bool) map[string]string {
	g := NewWithT(t)
	files, err := filepath.Glob(pattern)
	g.Expect(err).NotTo(HaveOccurred())
	values := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		for _, declaration := range parsed.Decls {
			if general, ok := declaration.(*ast.GenDecl); ok && general.Tok == token.CONST {
				addConstants(g, general, wanted, values)
			}
		}
	}
	return values
}

func addConstants(g *WithT, declaration *ast.GenDecl, wanted func(string) bool, values map[string]string) {
	for _, spec := range declaration.Specs {
		constant := spec.(*ast.ValueSpec)
		if !wanted(constant.Names[0].Name) || len(constant.Values) == 0 {
			continue
		}
		if value, ok := constant.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
			text, err := strconv.Unquote(value.Value)
			g.Expect(err).NotTo(HaveOccurred())
			values[constant.Names[0].Name] = text
		}
	}
}
