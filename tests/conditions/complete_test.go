package conditions_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// constant is a reason in the code.
type constant struct {
	// file is relative to the root of the repository, and name is that of the Go constant.
	file, name, reason string
}

// The files with the constants of Stack and Program, and of Update and Workspace.
const (
	stackConstants  = "api/pulumi/v1/zz_generated.reasons.go"
	updateConstants = "api/auto/v1alpha1/zz_generated.reasons.go"
)

// declaredIn are the names under which other packages import the constants.
var declaredIn = map[string]string{stackConstants: "pulumiv1", updateConstants: "autov1alpha1"}

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
			if !ok {
				return true
			}
			reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			all = append(all, constant{file: file, name: spec.Names[0].Name, reason: reason})
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

// link is one in Markdown, which goes to another page.
var link = regexp.MustCompile(`\[([^]]*)]\([^)]*\)`)

// constantsOf is the content of a file with constants.
func constantsOf(file, pkg string) string {
	var content strings.Builder
	fmt.Fprintf(&content, "// Code generated from tests/conditions by %s. DO NOT EDIT.\n\npackage %s\n", updateCommand, pkg)
	written := map[string]bool{}
	for _, table := range tables {
		if table.constants != file {
			continue
		}
		fmt.Fprintf(&content, "\n// Reasons of the conditions of %ss.\nconst (\n", table.kind)
		for _, row := range table.rows {
			name := cmp.Or(row.constant, row.reason+"Reason")
			if name == elsewhere || written[name] {
				continue
			}
			written[name] = true
			fmt.Fprintf(&content, "\t// %s (%s): %s\n\t%s = %q\n", name, strings.ReplaceAll(string(row.state), "*", ""), link.ReplaceAllString(row.means, "$1"), name, row.reason)
		}
		content.WriteString(")\n")
	}
	return content.String()
}

func TestConstantsOfTheAPIAreThoseOfTheRows(t *testing.T) {
	for file, pkg := range map[string]string{stackConstants: "v1", updateConstants: "v1alpha1"} {
		g := NewWithT(t)
		formatted, err := format.Source([]byte(constantsOf(file, pkg)))
		g.Expect(err).NotTo(HaveOccurred())
		pages.Keep(t, file, string(formatted), updateCommand, *updateDocs)
	}
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

// declares reports whether the reasons of the kind are in the file of the constant.
func declares(table table, found constant) bool { return table.constants == found.file }

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
