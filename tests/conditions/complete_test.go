package conditions_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// constant is a reason in the code.
type constant struct {
	// file is relative to the root of the repository, and name is that of the Go constant.
	file, name, reason string
}

// declaredIn are the files with the reasons, and the names under which other packages import them.
var declaredIn = map[string]string{
	"api/pulumi/v1/condition_types.go":     "pulumiv1",
	"api/auto/v1alpha1/condition_types.go": "autov1alpha1",
	"internal/update/reasons.go":           "",
}

// ofFlux are the values of the constants of Flux that stand for reasons of this API.
var ofFlux = map[string]string{
	"DependencyNotReadyReason": meta.DependencyNotReadyReason, "InvalidCELExpressionReason": meta.InvalidCELExpressionReason,
	"ProgressingReason": meta.ProgressingReason, "ProgressingWithRetryReason": meta.ProgressingWithRetryReason,
	"SucceededReason": meta.SucceededReason, "SuspendedReason": meta.SuspendedReason,
}

func parse(t *testing.T, file string) *ast.File {
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(file)), nil, parser.SkipObjectResolution)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return parsed
}

// constants lists the reasons that the code declares.
func constants(t *testing.T) (all []constant) {
	for file := range declaredIn {
		ast.Inspect(parse(t, file), func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || len(spec.Values) == 0 || !strings.HasSuffix(spec.Names[0].Name, "Reason") && !strings.HasPrefix(spec.Names[0].Name, "reason") {
				return true
			}
			found := constant{file: file, name: spec.Names[0].Name}
			switch value := spec.Values[0].(type) {
			case *ast.BasicLit:
				found.reason, _ = strconv.Unquote(value.Value)
			case *ast.SelectorExpr:
				found.reason = ofFlux[value.Sel.Name]
			}
			NewWithT(t).Expect(found.reason).NotTo(BeEmpty(), found.name)
			all = append(all, found)
			return true
		})
	}
	return all
}

func rowOf(table table, reason string) *row {
	for i := range table.rows {
		if table.rows[i].reason == reason {
			return &table.rows[i]
		}
	}
	return nil
}

func TestEveryReasonOfTheCodeHasARow(t *testing.T) {
	all := constants(t)
	NewWithT(t).Expect(len(all)).To(BeNumerically(">", 80))
	for _, found := range all {
		if !slices.ContainsFunc(tables, func(table table) bool { return declares(table, found) && rowOf(table, found.reason) != nil }) {
			t.Errorf("%s (%s in %s) has no row in tests/conditions", found.reason, found.name, found.file)
		}
	}
	for _, table := range tables {
		for _, row := range table.rows {
			if !slices.ContainsFunc(all, func(found constant) bool { return found.reason == row.reason }) {
				t.Errorf("%s: no constant has the reason %s", table.kind, row.reason)
			}
		}
	}
}

// declares tells whether the reasons of the kind are in the file of the constant.
func declares(table table, found constant) bool {
	return slices.Contains(table.constants, found.file)
}

func TestReasonsAreSetUnlessTheirRowSaysThatTheyAreNot(t *testing.T) {
	used := mentioned(t)
	for _, found := range constants(t) {
		name := found.name
		if alias := declaredIn[found.file]; alias != "" {
			name = alias + "." + name
		}
		for _, table := range tables {
			row := rowOf(table, found.reason)
			if row == nil || !declares(table, found) {
				continue
			}
			set := used[name] || row.state != notSet && used["meta."+found.name]
			// A reason that Stacks and Programs share, or Updates and Workspaces, may be set for one of them.
			if row.state == notSet && set {
				t.Errorf("%s: the row says that %s is never set, and the code uses %s", table.kind, found.reason, found.name)
			}
			if row.state != notSet && !set {
				t.Errorf("%s: nothing uses %s: remove it, or say in the row of %s that it is never set", table.kind, found.name, found.reason)
			}
		}
	}
}

// mentioned are the constants that the controllers use, with the name of their package.
func mentioned(t *testing.T) map[string]bool {
	found := map[string]bool{}
	root := filepath.Join(tools.RepositoryRoot(), "internal")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		relative, err := filepath.Rel(tools.RepositoryRoot(), path)
		if err != nil {
			return err
		}
		if _, declares := declaredIn[filepath.ToSlash(relative)]; declares {
			return nil
		}
		ast.Inspect(parse(t, filepath.ToSlash(relative)), func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.SelectorExpr:
				if of, ok := node.X.(*ast.Ident); ok {
					found[of.Name+"."+node.Sel.Name] = true
				}
			case *ast.Ident:
				found[node.Name] = true
			}
			return true
		})
		return nil
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return found
}
