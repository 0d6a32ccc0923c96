package main

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

	"github.com/fluxcd/pkg/apis/meta"
)

const troubleshooting = "docs/guides/troubleshooting.md"

// fluxReasons are the values of the constants of Flux that stand for reasons of this API.
var fluxReasons = map[string]string{
	"DependencyNotReadyReason":   meta.DependencyNotReadyReason,
	"InvalidCELExpressionReason": meta.InvalidCELExpressionReason,
	"ProgressingReason":          meta.ProgressingReason,
	"ProgressingWithRetryReason": meta.ProgressingWithRetryReason,
	"SucceededReason":            meta.SucceededReason,
	"SuspendedReason":            meta.SuspendedReason,
}

func TestTroubleshootingExplainsEveryEvent(t *testing.T) {
	content, err := os.ReadFile(troubleshooting)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, tt := range []struct {
		sections []string
		files    []string
		isReason func(constant string) bool
	}{
		{[]string{"Events"}, []string{"internal/program/*.go", "internal/stack/*.go", "internal/update/*.go", "internal/workspace/*.go"}, beginsWith("event")},
	} {
		explained := ""
		for _, heading := range tt.sections {
			_, section, found := strings.Cut(string(content), "\n## "+heading+"\n")
			NewWithT(t).Expect(found).To(BeTrue(), "no section %q", heading)
			section, _, _ = strings.Cut(section, "\n## ")
			explained += section
		}
		reasons := 0
		for _, file := range tt.files {
			for constant, reason := range stringConstants(t, file, tt.isReason) {
				reasons++
				if !strings.Contains(explained, "`"+reason+"`") {
					t.Errorf("%s: %s (%s in %s) is not explained under %s", troubleshooting, reason, constant, file, strings.Join(tt.sections, ", "))
				}
			}
		}
		NewWithT(t).Expect(reasons).To(BeNumerically(">", 2))
	}
}

func endsInReason(constant string) bool {
	return strings.HasSuffix(constant, "Reason")
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
		switch value := constant.Values[0].(type) {
		case *ast.BasicLit:
			if value.Kind == token.STRING {
				text, err := strconv.Unquote(value.Value)
				g.Expect(err).NotTo(HaveOccurred())
				values[constant.Names[0].Name] = text
			}
		case *ast.SelectorExpr:
			g.Expect(fluxReasons).To(HaveKey(value.Sel.Name), "the value of %s", constant.Names[0].Name)
			values[constant.Names[0].Name] = fluxReasons[value.Sel.Name]
		}
	}
}
