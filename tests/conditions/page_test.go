// Package conditions_test makes docs/conditions.md, and sees to it that the page has every reason of the code, that nothing else brings
// an object back than the page says, and that a test provokes each.
package conditions_test

import (
	"encoding/json"
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

// document is the page, relative to the root of the repository.
const document = "docs/conditions.md"

var updateDocs = flag.Bool("update-docs", false, "write "+document)

// updateCommand writes the page.
const updateCommand = "go test ./tests/conditions -update-docs"

// state says what an object with a reason is about to do.
type state string

const (
	settled          state = "up to date"
	working          state = "on its way"
	waiting          state = "waits"
	transient        state = "transient"
	stalled          state = "**Stalled**"
	waitingOrStalled state = "waits, or **Stalled**"
	failing          state = "failure that counts"
	failingOften     state = "failure that counts, **Stalled**"
	noFailure        state = "no failure"
	locked           state = "no failure; **Stalled** after 10 min"
	ended            state = "ended well"
	endedBadly       state = "failure that counts"
	endedNoFailure   state = "ended, no failure"
	notSet           state = "never set"
)

// row is what there is to say about a reason.
type row struct {
	reason string
	state  state
	// means is what it means. when says more of what wakes the object than the names of the wakers do, times above all. todo is what
	// somebody may do.
	means, when, todo string
	// tests are names of tests that provoke it: the package, a dot, the function, and the subtest when there is one.
	tests []string
}

// table is a kind of object.
type table struct {
	kind string
	// conditions says what the types of conditions mean.
	conditions string
	// constants are the files with the reasons.
	constants []string
	// wakers is the file with the wakers that the decisions of the controller have; empty for a kind with few of them.
	wakers string
	rows   []row
}

// wakerNames are those of the wakers of the controllers, as a reader knows them.
var wakerNames = map[string]string{
	"edit": "edit", "source": "the source", "fetch": "the download", "update": "the Update or Workspace", "dependencies": "the other Stacks",
	"dependents": "the Stacks that depend on it", "time": "time", "workspace": "the Workspace", "updates": "the other Updates",
	"observer": "the operation", "delivery": "the delivery",
}

// wakersOf reads the wakers of each reason.
func wakersOf(t *testing.T, table table) map[string][]string {
	wakers := map[string][]string{}
	if table.wakers == "" {
		return wakers
	}
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(table.wakers)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(content, &wakers)).To(Succeed())
	return wakers
}

// named lists the wakers by their names.
func named(t *testing.T, wakers []string) string {
	var names []string
	for _, waker := range wakers {
		if wakerNames[waker] == "" {
			t.Errorf("the waker %q has no name", waker)
		}
		names = append(names, wakerNames[waker])
	}
	return strings.Join(names, ", ")
}

// wakes is the column about what wakes an object.
func wakes(t *testing.T, row row, wakers []string) string {
	if slices.Contains(wakers, "time") && row.when == "" {
		t.Errorf("%s: time wakes it, and nothing says when", row.reason)
	}
	text := named(t, wakers)
	switch {
	case text == "":
		return row.when
	case row.when == "":
		return text
	}
	return text + ": " + row.when
}

func TestConditionsPageIsUpToDate(t *testing.T) {
	g := NewWithT(t)
	tests := findTests(t)
	var page strings.Builder
	page.WriteString(introduction)
	for _, table := range tables {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n", table.kind, strings.TrimSpace(table.conditions))
		page.WriteString("| reason | what it is | what it means | what wakes it | what to do | provoked by |\n|---|---|---|---|---|---|\n")
		wakers := wakersOf(t, table)
		for _, row := range table.rows {
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s | %s |\n", row.reason, row.state, cell(row.means), cell(wakes(t, row, wakers[row.reason])),
				cell(row.todo), links(t, tests, row))
			delete(wakers, row.reason)
		}
		shared(t, &page, table, wakers)
	}
	path := filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(document))
	if *updateDocs {
		g.Expect(os.WriteFile(path, []byte(page.String()), 0o644)).To(Succeed())
	}
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content) == page.String()).To(BeTrue(), "%s is not what the rows say; run: %s", document, updateCommand)
}

// shared lists the reasons of the first table that an object of this one has, too.
func shared(t *testing.T, page *strings.Builder, table table, wakers map[string][]string) {
	if len(wakers) == 0 {
		return
	}
	page.WriteString(sharing)
	for _, row := range tables[0].rows {
		all, found := wakers[row.reason]
		if !found {
			continue
		}
		delete(wakers, row.reason)
		fmt.Fprintf(page, "| `%s` | %s |\n", row.reason, named(t, all))
	}
	for reason := range wakers {
		t.Errorf("a decision of the controller of a %s has the reason %s, which has no row", table.kind, reason)
	}
}

// cell makes text fit into a cell.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// links names tests and where they are.
func links(t *testing.T, tests *tests, row row) string {
	var all []string
	for _, name := range row.tests {
		function, subtest, _ := strings.Cut(name, "/")
		file, found := tests.file(function, subtest)
		if !found {
			t.Errorf("%s: there is no test %s", row.reason, name)
			continue
		}
		_, short, _ := strings.Cut(function, ".")
		if subtest != "" {
			short += "/" + subtest
		}
		all = append(all, fmt.Sprintf("[%s](../%s)", cell(short), file))
	}
	return strings.Join(all, "<br>")
}
