package compatibility_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// document is the short page, relative to the root of the repository; tablesIn is the directory of the pages with the tables.
const (
	document = "docs/compatibility.md"
	tablesIn = "docs/compatibility"
)

var updateDocs = flag.Bool("update-docs", false, "write "+document+" and the pages below "+tablesIn)

// row describes a field.
type row struct {
	// field is the path below the top of its table. Text in parentheses names a special case of the field.
	field string
	// operator describes what the Pulumi Kubernetes Operator does with the field.
	operator string
	// uses and misuses are names of tests: the package, a dot, the function, and the subtest if there is one.
	uses, misuses []string
	// difference describes what is different here, and why the reason for it. Both are empty if nothing is different.
	difference, why string
}

// table is a part of a page.
type table struct {
	heading string
	// about is the text before the rows.
	about string
	// anchor is the first part of the anchors of the rows.
	anchor string
	// definition and top determine which fields the rows must cover. Both are empty for a table that lists something else.
	definition, top string
	rows            []row
}

// page is a file below tablesIn.
type page struct {
	file, title, introduction string
	tables                    []table
}

const updateCommand = "go test ./tests/contract/compatibility -run 'Pages|EveryField' -update-docs"

const generated = "<!-- Written by " + updateCommand + " from the rows in tests/contract/compatibility. -->\n"

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

// anchorOf returns the anchor of the row, with which links to it end.
func (t table) anchorOf(row row) string {
	return t.anchor + "-" + strings.Trim(notInAnchor.ReplaceAllString(strings.ToLower(row.field), "-"), "-")
}

var notInAnchor = regexp.MustCompile(`[^a-z0-9]+`)

// quoted formats a field, without its case, as code. A field with spaces is plain text.
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

// here returns the cell of the column that describes what is different.
func here(row row) string {
	if row.difference == "" {
		return "same"
	}
	return pages.Cell(strings.TrimSpace("**" + row.difference + "** " + row.why))
}

// allTables returns the tables of all pages.
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

// elsewhere reports whether a field has its row in another table of the same definition, or is part of a field that has a row.
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

// withoutCase returns the field of a row without its case in parentheses.
func withoutCase(field string) string {
	field, _, _ = strings.Cut(field, " (")
	return field
}

// isNew matches the description of the operator in rows of fields that the operator does not have.
var isNew = regexp.MustCompile(`^(None|Not a field)|Removed in 2\.0\.$`)

// TestNewFieldsOfStacksAreThoseThatTheOperatorDoesNotKnow compares the rows with the list that internal/migrate uses for its warnings.
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
		// Templates have no rows, and what is below a key has a row for the case of its field.
		if !strings.Contains(field.Path, "Template.") && !strings.Contains(field.Path, "*") {
			known = append(known, field.Path)
		}
	}
	NewWithT(t).Expect(written).To(ConsistOf(known))
}

// maxShortPage is the maximum number of lines of the short page, so that people read it.
const maxShortPage = 120

// change is a difference that a user may notice.
type change struct {
	text string
	// row is the file name of the page with the row, and the anchor of the row there.
	row string
}

// changes lists the differences on the short page, by subject.
var changes = []struct {
	subject string
	changes []change
}{
	{"Sources", []change{
		{"The controller fetches a source once and sends it to the workspaces. Pods need no access to source-controller or git servers.",
			"stacks.md#spec-fluxsource"},
		{"A commit that changes no file of the stack causes no update. Set `updateOn: Revision` to update for each commit.",
			"stacks.md#spec-updateon"},
		{"The commit in the status of a Stack with a Flux source or a Program is a digest. The revision is next to it.",
			"stacks.md#status-lastupdate-lastsuccessfulcommit"},
		{"The controller connects to a git server with SSH only if its host key is known.", "stacks.md#spec-gitauth-sshauth"},
		{"A Stack that waits for its source is not Stalled, and the reason is the exact cause.", "stacks.md#reason-sourceunavailable"},
	}},
	{"Secrets and configuration", []change{
		{"A Stack waits for a missing Secret, ConfigMap or key, and names it.", "stacks.md#spec-accesstokensecret"},
		{"Values of Secrets and ConfigMaps are read when an operation starts. They are not mounted into the pod as files.",
			"stacks.md#spec-configref"},
		{"A configuration key that is set twice is rejected.", "stacks.md#spec-secrets"},
		{"A change of `secretsProvider` re-encrypts an existing stack.", "stacks.md#spec-secretsprovider"},
	}},
	{"Lifecycle", []change{
		{"Failed updates are retried without limit. After three failures the Stack is also Stalled.", "stacks.md#reason-updatefailed"},
		{"Failed destroys are retried without limit.", "stacks.md#spec-destroyonfinalize"},
		{"Interrupted updates are repeated, and do not count as failures.", "stacks.md#status-lastupdate-interruptions"},
		{"A locked stack is not a failure. `retryOnUpdateConflict` shortens the wait.", "stacks.md#spec-retryonupdateconflict"},
		{"`expectNoRefreshChanges` has an effect: with `refresh`, an update that finds drift fails.",
			"stacks.md#spec-expectnorefreshchanges"},
		{"A stack that was deployed and is missing in its backend is not created again.", "stacks.md#status-deployedstack"},
		{"A Stack with `preview` that was deployed earlier is destroyed when it is deleted with `destroyOnFinalize`.",
			"stacks.md#spec-preview"},
	}},
	{"Status and conditions", []change{
		{"`Ready` is `Unknown` while an operation runs, and stays `True` during a resync.", "stacks.md#status-conditions"},
		{"The message of a failed update is the error. The whole output of Pulumi is in the log of the pod.",
			"stacks.md#status-lastupdate-message"},
		{"The names of Updates are hashes and do not contain the time.", "stacks.md#status-lastupdate-name"},
	}},
	{"Workspaces and pods", []change{
		{"The service account of a workspace needs no binding to `system:auth-delegator`.", "stacks.md#spec-serviceaccountname"},
		{"A Workspace is Ready when its agent can run operations. Each operation installs dependencies and selects its stack.",
			"workspaces.md#workspace-succeeded"},
		{"An operation continues while the controller restarts.", "workspaces.md#update-aborted"},
	}},
	{"Programs", []change{
		{"Unknown fields are not silently removed.", "programs.md#program-resources"},
		{"Programs can use all of Pulumi YAML. Fields that the operator removes have an effect.",
			"programs.md#program-resources-options-retainondelete"},
		{"The URL of a Program's artifact cannot be fetched. The controller sends the program to the workspace.",
			"programs.md#status-artifact"},
	}},
}

// shortPage returns the page that links to the others.
func shortPage(t *testing.T, tests *pages.Tests) string {
	t.Helper()
	var text, list strings.Builder
	for _, page := range documents {
		same, different, added := page.count()
		fmt.Fprintf(&list, "| [%s](compatibility/%s) | %d | %d | %d |\n",
			strings.TrimPrefix(page.title, "Compatibility of "), page.file, same, different, added)
	}
	fmt.Fprintf(&text, summaryHead, generated, list.String(), rulesPage)
	for _, subject := range changes {
		fmt.Fprintf(&text, "\n### %s\n\n", subject.subject)
		for _, change := range subject.changes {
			if row, found := findRow(change.row); found {
				fmt.Fprintf(&text, "- %s [%s](compatibility/%s)\n", change.text, quoted(row.field), change.row)
			}
		}
	}
	text.WriteString(pulumiVersions(t, tests))
	return text.String()
}

// count returns how many rows of the page describe something that is the same, different, or new.
func (p page) count() (same, different, added int) {
	for _, table := range p.tables {
		for _, row := range table.rows {
			switch {
			case row.difference == "":
				same++
			case strings.HasPrefix(row.difference, "New"):
				added++
			default:
				different++
			}
		}
	}
	return same, different, added
}

// findRow returns the row that a link points to.
func findRow(link string) (found row, ok bool) {
	file, anchor, _ := strings.Cut(link, "#")
	for _, page := range documents {
		for _, table := range page.tables {
			for _, row := range table.rows {
				if page.file == file && table.anchorOf(row) == anchor {
					return row, true
				}
			}
		}
	}
	return row{}, false
}

func TestChangesOnTheShortPageAreDifferencesInTheTables(t *testing.T) {
	g := NewWithT(t)
	var rows []string
	for _, subject := range changes {
		for _, change := range subject.changes {
			row, found := findRow(change.row)
			g.Expect(found).To(BeTrue(), "%s is not a row", change.row)
			g.Expect(row.difference).NotTo(BeEmpty(), change.row)
			g.Expect(rows).NotTo(ContainElement(change.row))
			rows = append(rows, change.row)
		}
	}
	g.Expect(len(rows)).To(And(BeNumerically(">=", 15), BeNumerically("<=", 25)))
	g.Expect(strings.Count(shortPage(t, pages.FindTests(t)), "\n")).To(BeNumerically("<=", maxShortPage))
}

func TestLinksToRowsAreUnique(t *testing.T) {
	g := NewWithT(t)
	for _, page := range documents {
		var anchors []string
		for _, table := range page.tables {
			for _, row := range table.rows {
				anchors = append(anchors, table.anchorOf(row))
			}
		}
		slices.Sort(anchors)
		g.Expect(slices.Compact(slices.Clone(anchors))).To(Equal(anchors), page.file)
	}
}

const summaryHead = `# Compatibility

%[1]s
Manifests for the Pulumi Kubernetes Operator, "the operator" on these pages, work with stack-controller without changes:

- The kinds, fields, conditions, annotations, labels, finalizers and printer columns of the operator exist, with the same names.
- The API server accepts the same objects, with [a few exceptions](compatibility/%[3]s).
- A field has the same meaning. Where it behaves differently, the tables below name the reason.

To migrate, follow the [migration guide](guides/migration.md). [Conditions](conditions.md) describes each reason of a condition.

## All fields

| page | same | different | new |
|---|---|---|---|
%[2]s
[Rules of the API server](compatibility/%[3]s) lists what the API server rejects here and accepts with the operator's CRDs.

Each row of these pages has a test that uses the field and a test that misuses it. A misused field is missing, malformed, hostile,
very large, or contradicts another one. The test expects that the API server rejects the object, or that a condition names the
mistake, and that the object recovers when the mistake is corrected. The tests run stack-controller with a real API server,
source-controller, git server and Pulumi CLI. Those in tests/e2e/pods run it on a node.

## Differences that you may notice
`

// oldestTest is the test that runs the oldest CLI.
const oldestTest = "operation.TestOldestCLIDoesAllThatMatters"

// pulumiVersions returns the section about versions of the pulumi CLI.
func pulumiVersions(t *testing.T, tests *pages.Tests) string {
	t.Helper()
	var part strings.Builder
	fmt.Fprintf(&part, `
## Versions of the pulumi CLI

A Workspace runs the Pulumi CLI of its image. As with the operator, any version 3 is accepted. Each change is tested with
%[3]s, and the long suite also runs the main scenarios with %[1]s, the oldest version that is tested (%[2]s).
No test runs the versions between them, or newer ones. On 2026-11-25 these scenarios were run once with 3.205.0, and all passed.

An Update that needs a flag that its CLI does not have fails with `+"`ConfigInvalid`"+`. Except for structured configuration, nothing else is
rejected.

| since | feature | with older versions |
|---|---|---|
`, pinned(t, "pulumi-oldest"), tests.Links(t, []string{oldestTest}, "../"), pinned(t, "pulumi"))
	for _, feature := range cli.Features() {
		fmt.Fprintf(&part, "| %s | %s | %s |\n", feature.Since, feature.Name, pages.Cell(feature.Without))
	}
	return part.String()
}

// pinned returns the version of the pulumi CLI that the tool is built from.
func pinned(t *testing.T, tool string) string {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "tests", "tools", tool, "go.mod"))
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile(`\tgithub\.com/pulumi/pulumi/pkg/v3 v(\S+)`).FindSubmatch(content)
	g.Expect(found).NotTo(BeNil())
	return string(found[1])
}
