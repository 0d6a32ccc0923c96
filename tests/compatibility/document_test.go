package compatibility_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// document is the page that is made of the rows, relative to the root of the repository.
const document = "docs/compatibility.md"

var updateDocs = flag.Bool("update-docs", false, "write the tables into "+document)

// row is what there is to say about a field.
type row struct {
	// field is its path below the top of its table. What stands in parentheses is a case of it.
	field string
	// operator is what the Pulumi Kubernetes Operator does with it.
	operator string
	// uses and misuses are names of tests: the package, a dot, the function, and the subtest when there is one.
	uses, misuses []string
	// difference is what is different here; empty when nothing is. Why says for what reason.
	difference, why string
}

// table is a part of the page.
type table struct {
	heading string
	// about stands before the rows.
	about string
	// definition and top tell of which fields the rows are; empty for a table that lists something else.
	definition, top string
	rows            []row
}

const updateCommand = "go test ./tests/compatibility -run 'TestCompatibilityPage|TestEveryField' -update-docs"

func TestCompatibilityPageIsUpToDate(t *testing.T) {
	g := NewWithT(t)
	tests := findTests(t)
	var page strings.Builder
	page.WriteString(introduction)
	for _, table := range tables {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n", table.heading, strings.TrimSpace(table.about))
		page.WriteString("| field | the operator | here | used by | misused by |\n|---|---|---|---|---|\n")
		for _, row := range table.rows {
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s |\n", row.field, cell(row.operator), here(row), links(t, tests, row.uses), links(t, tests, row.misuses))
		}
	}
	path := filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(document))
	if *updateDocs {
		g.Expect(os.WriteFile(path, []byte(page.String()), 0o644)).To(Succeed())
	}
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content) == page.String()).To(BeTrue(), "%s is not what the rows say; run: %s", document, updateCommand)
}

// here is the column about what is different.
func here(row row) string {
	if row.difference == "" {
		return "same"
	}
	return cell(strings.TrimSpace("**" + row.difference + "** " + row.why))
}

// cell makes text fit into a cell.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// links names tests and where they are.
func links(t *testing.T, tests map[string]string, names []string) string {
	var all []string
	for _, name := range names {
		function, subtest, _ := strings.Cut(name, "/")
		file, found := tests[name]
		if !found {
			t.Errorf("there is no test %s", name)
			continue
		}
		_, short, _ := strings.Cut(function, ".")
		if subtest != "" {
			short += "/" + subtest
		}
		all = append(all, fmt.Sprintf("[%s](../%s)", strings.ReplaceAll(short, "|", `\|`), file))
	}
	return strings.Join(all, "<br>")
}

func TestEveryFieldHasARowWithTests(t *testing.T) {
	for _, table := range tables {
		t.Run(table.heading, func(t *testing.T) {
			listed := map[string]bool{}
			for _, row := range table.rows {
				listed[withoutCase(row.field)] = true
				if len(row.uses) == 0 || len(row.misuses) == 0 {
					t.Errorf("%s is not both used and misused by a test", row.field)
				}
				if (row.difference == "") != (row.why == "") {
					t.Errorf("%s: a difference has a reason, and only a difference has one", row.field)
				}
			}
			if table.definition == "" {
				return
			}
			var known []string
			for _, field := range fieldsOf(t, table.definition, table.top) {
				path := strings.TrimPrefix(field.path, table.top+".")
				known = append(known, path)
				if !listed[path] && !elsewhere(table, path) {
					t.Errorf("%s.%s has no row", table.top, path)
				}
			}
			for path := range listed {
				if !slices.Contains(known, path) {
					t.Errorf("%s.%s is no field", table.top, path)
				}
			}
		})
	}
}

// elsewhere tells whether a field has its row in another table of the same definition, or is a part of one that has a row.
func elsewhere(this table, path string) bool {
	for _, other := range tables {
		if other.definition != this.definition || other.top != this.top {
			continue
		}
		for _, row := range other.rows {
			field := withoutCase(row.field)
			if field == path || (strings.HasPrefix(path, field+".") || strings.HasPrefix(path, field+"[]")) && slices.Contains(wholes, field) {
				return true
			}
		}
	}
	return false
}

// withoutCase is the field of a row.
func withoutCase(field string) string {
	field, _, _ = strings.Cut(field, " (")
	return field
}
