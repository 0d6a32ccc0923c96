package compatibility_test

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/handback/newfields"
	"github.com/stack-controller/stack-controller/tests/pages"
)

// The short page, relative to the root of the repository, and the directory of the pages with the tables.
const (
	document = "docs/compatibility.md"
	tablesIn = "docs/compatibility"
)

var updateDocs = flag.Bool("update-docs", false, "write "+document+" and the pages below "+tablesIn)

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

// table is a part of a page.
type table struct {
	heading string
	// about stands before the rows.
	about string
	// anchor is the first part of the anchors of its rows.
	anchor string
	// definition and top tell of which fields the rows are; empty for a table that lists something else.
	definition, top string
	rows            []row
}

// page is a file below tablesIn.
type page struct {
	file, title, introduction string
	tables                    []table
}

const updateCommand = "go test ./tests/compatibility -run 'Pages|EveryField' -update-docs"

const generated = "<!-- Written by " + updateCommand + " from the rows in tests/compatibility. -->\n"

func TestCompatibilityPagesAreUpToDate(t *testing.T) {
	tests := pages.FindTests(t)
	keepPage(t, document, shortPage(t, tests))
	for _, page := range documents {
		keepPage(t, tablesIn+"/"+page.file, page.text(t, tests))
	}
	keepPage(t, tablesIn+"/"+rulesPage, rulesText(t))
}

func keepPage(t *testing.T, name, text string) {
	t.Helper()
	pages.Keep(t, name, text, updateCommand, *updateDocs)
}

func (p page) text(t *testing.T, tests *pages.Tests) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n%s\n%s\n%s\n", p.title, generated, strings.TrimSpace(p.introduction), pages.AboutMarks("../../"))
	for _, table := range p.tables {
		fmt.Fprintf(&text, "\n## %s\n\n%s\n\n", table.heading, strings.TrimSpace(table.about))
		column := "field"
		if table.definition == "" {
			column = "name"
		}
		fmt.Fprintf(&text, "| %s | Pulumi Kubernetes Operator | stack-controller | tests | tests of misuse |\n|---|---|---|---|---|\n", column)
		for _, row := range table.rows {
			fmt.Fprintf(&text, "| <a id=%q></a>%s | %s | %s | %s | %s |\n", table.anchorOf(row), quoted(row.field), pages.Cell(row.operator), here(row),
				tests.Links(t, row.uses, "../../"), tests.Links(t, row.misuses, "../../"))
		}
	}
	return text.String()
}

// anchorOf is what links to the row end with.
func (t table) anchorOf(row row) string {
	return t.anchor + "-" + strings.Trim(notInAnchor.ReplaceAllString(strings.ToLower(row.field), "-"), "-")
}

var notInAnchor = regexp.MustCompile(`[^a-z0-9]+`)

// quoted shows a field, without its case, as code. What has spaces is text already.
func quoted(field string) string {
	name, inParentheses, isCase := strings.Cut(field, " (")
	switch {
	case strings.Contains(name, " "):
		return field
	case isCase:
		return "`" + name + "` (" + inParentheses
	}
	return "`" + name + "`"
}

// here is the column about what is different.
func here(row row) string {
	if row.difference == "" {
		return "same"
	}
	return pages.Cell(strings.TrimSpace("**" + row.difference + "** " + row.why))
}

// allTables are those of all pages.
func allTables() (all []table) {
	for _, page := range documents {
		all = append(all, page.tables...)
	}
	return all
}

func TestEveryFieldHasARowWithTests(t *testing.T) {
	for _, table := range allTables() {
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

// elsewhere reports whether a field has its row in another table of the same definition, or is a part of one that has a row.
func elsewhere(this table, path string) bool {
	for _, other := range allTables() {
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

// isNew matches what is said of the operator where it has no such field.
var isNew = regexp.MustCompile(`^(None|Not a field)|Removed in 2\.0\.$`)

// TestNewFieldsOfStacksAreThoseThatTheOperatorDoesNotKnow compares the rows with the list that hand-back warns with.
func TestNewFieldsOfStacksAreThoseThatTheOperatorDoesNotKnow(t *testing.T) {
	var written, known []string
	for _, table := range allTables() {
		for _, row := range table.rows {
			if table.definition == stacks && table.top == "spec" && isNew.MatchString(row.operator) {
				written = append(written, "spec."+row.field)
			}
		}
	}
	for _, field := range newfields.Of(newfields.Stacks) {
		if !strings.Contains(field.Path, "Template.") { // templates have no rows
			known = append(known, field.Path)
		}
	}
	NewWithT(t).Expect(written).To(ConsistOf(known))
}
