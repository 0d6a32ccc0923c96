package conditions_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// constant is a constant of a reason in the code.
type constant struct {
	// file is relative to the root of the repository, and name is the name of the Go constant.
	file, name, reason string
}

// declaredIn has the names under which other packages import the packages of the constants.
var declaredIn = map[string]string{reasons.StackConstants: "pulumiv1", reasons.UpdateConstants: "autov1alpha1"}

func parse(t *testing.T, file string) *ast.File {
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(file)), nil, parser.SkipObjectResolution)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return parsed
}

// constants returns the constants of reasons that the code declares.
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

func TestEveryReasonOfTheCodeHasARow(t *testing.T) {
	all, tables := constants(t), reasons.Tables()
	NewWithT(t).Expect(len(all)).To(BeNumerically(">", 80))
	for _, found := range all {
		if !slices.ContainsFunc(tables, func(table reasons.Table) bool { return declares(table, found) && table.Row(found.reason) != nil }) {
			t.Errorf("%s (%s in %s) has no row in internal/report/reasons", found.reason, found.name, found.file)
		}
	}
	for _, table := range reasons.Tables() {
		for _, row := range table.Rows {
			if !slices.ContainsFunc(all, func(found constant) bool { return found.reason == row.Reason }) {
				t.Errorf("%s: no constant has the reason %s", table.Kind, row.Reason)
			}
		}
	}
}

// declares reports whether the file of the constant is the file for the reasons of the kind.
func declares(table reasons.Table, found constant) bool { return table.Constants == found.file }

func TestReasonsAreSetUnlessTheirRowSaysThatTheyAreNot(t *testing.T) {
	used := mentioned(t)
	for _, found := range constants(t) {
		name := found.name
		if alias := declaredIn[found.file]; alias != "" {
			name = alias + "." + name
		}
		for _, table := range reasons.Tables() {
			row := table.Row(found.reason)
			if row == nil || !declares(table, found) {
				continue
			}
			set := used[name] || row.State != reasons.NotSet && used["meta."+found.name]
			// A reason that Stacks and Programs share, or Updates and Workspaces, may be set for only one of them.
			if row.State == reasons.NotSet && set {
				t.Errorf("%s: the row says that %s is never set, and the code uses %s", table.Kind, found.reason, found.name)
			}
			if row.State != reasons.NotSet && !set {
				t.Errorf("%s: nothing uses %s: remove it, or say in the row of %s that it is never set", table.Kind, found.name, found.reason)
			}
		}
	}
}

// mentioned returns the constants that the controllers use, with the name of their package.
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

// mentions reports whether the test, or something that it uses, refers to one of the constants or has the reason as a string.
func mentions(tests *pages.Tests, test, reason string, named []constant) bool {
	return tests.Uses(test, func(d *pages.Declaration) bool {
		return d.Literals[reason] || slices.ContainsFunc(named, func(constant constant) bool {
			return d.Selected[declaredIn[constant.file]+"."+constant.name] || d.Selected["meta."+constant.name]
		})
	})
}

func TestEveryReasonIsProvokedByATest(t *testing.T) {
	all, found := constants(t), pages.FindTests(t)
	for _, table := range reasons.Tables() {
		for _, row := range table.Rows {
			if (row.State == reasons.NotSet) == (len(row.Tests) > 0) {
				t.Errorf("%s: %s has tests, unless it is never set", table.Kind, row.Reason)
			}
			var named []constant
			for _, one := range all {
				if one.reason == row.Reason {
					named = append(named, one)
				}
			}
			for _, name := range row.Tests {
				test, _, _ := strings.Cut(name, "/")
				if !mentions(found, test, row.Reason, named) {
					t.Errorf("%s: %s does not name the reason %s", table.Kind, name, row.Reason)
				}
			}
		}
	}
}

const troubleshooting = "../../../docs/guides/troubleshooting.md"

// TestTroubleshootingExplainsEveryEvent checks the events. The other tests of this package check the reasons of conditions.
func TestTroubleshootingExplainsEveryEvent(t *testing.T) {
	content, err := os.ReadFile(troubleshooting)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "\n## Events\n")
	NewWithT(t).Expect(found).To(BeTrue())
	explained, _, _ := strings.Cut(section, "\n## ")
	events := 0
	for _, file := range []string{"../../../internal/controller/program/*.go", "../../../internal/controller/stack/*.go", "../../../internal/controller/update/*.go", "../../../internal/controller/workspace/*.go"} {
		for constant, event := range stringConstants(t, file, beginsWith("event")) {
			events++
			if !strings.Contains(explained, "`"+event+"`") {
				t.Errorf("%s: %s (%s in %s) is not explained", troubleshooting, event, constant, file)
			}
		}
	}
	NewWithT(t).Expect(events).To(BeNumerically(">", 10))
	// These have the name of a reason, and report no problem with an update.
	for _, event := range []string{pulumiv1.PlanStaleReason, pulumiv1.NoDriftReason, pulumiv1.DriftDetectedReason, pulumiv1.DriftComesBackReason, pulumiv1.DriftCheckFailedReason} {
		if !strings.Contains(explained, "`"+event+"`") {
			t.Errorf("%s: %s is not explained", troubleshooting, event)
		}
	}
}

func TestAlertsExplainEveryEventOfAStackRollout(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile("../../../docs/guides/alerts.md")
	g.Expect(err).NotTo(HaveOccurred())
	events := stringConstants(t, "../../../internal/controller/rollout/*.go", beginsWith("event"))
	g.Expect(events).NotTo(BeEmpty())
	for constant, event := range events {
		g.Expect(string(content)).To(ContainSubstring("`"+event+"`"), constant)
	}
}

func beginsWith(prefix string) func(string) bool {
	return func(constant string) bool { return strings.HasPrefix(constant, prefix) }
}

// stringConstants returns the string constants of the files, without tests, whose names are wanted, with their values.
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
