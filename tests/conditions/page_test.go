// Package conditions_test has the one table of all reasons. It generates the constants in the API and docs/conditions.md from it. It checks
// that the code uses each reason, that only the wakers on the page bring an object back, and that a test provokes each reason.
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

	"github.com/stack-controller/stack-controller/tests/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// document is the page, relative to the root of the repository.
const document = "docs/conditions.md"

var updateDocs = flag.Bool("update-docs", false, "write "+document)

// updateCommand is the command that writes the page.
const updateCommand = "go test ./tests/conditions -update-docs"

// state is what an object with a reason is doing, and whether the state counts as a failure.
type state string

const (
	upToDate         state = "ready"
	working          state = "in progress"
	waiting          state = "waiting"
	transient        state = "transient"
	stalled          state = "**Stalled**"
	waitingOrStalled state = "waiting or **Stalled**"
	failing          state = "failed"
	failingOften     state = "failed, **Stalled**"
	failingForGood   state = "failed, **Stalled** at once"
	noFailure        state = "interrupted"
	locked           state = "waiting, **Stalled** after 10 minutes"
	ended            state = "succeeded"
	endedBadly       state = "failed"
	endedNoFailure   state = "ended, not a failure"
	canceled         state = "failed, unless suspended"
	notSet           state = "not used"
)

// row describes a reason.
type row struct {
	reason string
	state  state
	// constant is the name of the constant in the API, or elsewhere. It defaults to the reason followed by "Reason".
	constant string
	// means is the meaning of the reason. when is added to the names of the wakers, and replaces the waker "time". todo is what the user
	// can do.
	means, when, todo string
	// tests are names of tests that provoke the reason: the package, a dot, the function, and the subtest if there is one.
	tests []string
}

// elsewhere means that the table of another kind declares the constant of the reason.
const elsewhere = "elsewhere"

// table describes the reasons of a kind of object.
type table struct {
	kind string
	// conditions describes the types of conditions.
	conditions string
	// constants is the file with the constants, which is generated from the rows.
	constants string
	// wakers is the file with the wakers for the decisions of the controller; empty for a kind with few wakers.
	wakers string
	rows   []row
}

// wakerNames are the names on the page for the controllers' wakers.
var wakerNames = map[string]string{
	"edit": "an edit", "source": "the source", "fetch": "the download", "update": "the Update or Workspace", "dependencies": "the other Stacks",
	"dependents": "the dependents", "time": "time", "workspace": "the Workspace", "updates": "the other Updates",
	"approval": "an Approval", "stack": "the Stack", "observer": "the operation", "delivery": "the delivery", "turn": "its turn",
}

// wakersOf reads the wakers for each reason.
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

// named returns the wakers by their names on the page.
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

// wakes returns the column about what wakes an object. The row's text about the time replaces the waker "time".
func wakes(t *testing.T, row row, wakers []string) string {
	if slices.Contains(wakers, "time") && row.when == "" {
		t.Errorf("%s: time wakes it, and nothing says when", row.reason)
	}
	if row.when != "" {
		wakers = slices.DeleteFunc(slices.Clone(wakers), func(waker string) bool { return waker == "time" })
	}
	text := named(t, wakers)
	switch {
	case text == "":
		return row.when
	case row.when == "":
		return text
	}
	return text + "; " + row.when
}

func TestConditionsPageIsUpToDate(t *testing.T) {
	tests := pages.FindTests(t)
	var page strings.Builder
	page.WriteString(introduction + "\n" + pages.AboutMarks("../") + "\n")
	for _, table := range tables {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n", table.kind, strings.TrimSpace(table.conditions))
		page.WriteString("| reason | state | meaning | what wakes the object | what to do | test |\n|---|---|---|---|---|---|\n")
		wakers := wakersOf(t, table)
		checkPermanence(t, table, wakers[stalledReasons])
		delete(wakers, stalledReasons)
		for _, row := range table.rows {
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s | %s |\n", row.reason, row.state, pages.Cell(row.means), pages.Cell(wakes(t, row, wakers[row.reason])),
				pages.Cell(row.todo), tests.Links(t, row.tests, "../"))
			delete(wakers, row.reason)
		}
		shared(t, &page, table, wakers)
	}
	pages.Keep(t, document, page.String(), updateCommand, *updateDocs)
}

// stalledReasons is the key, in the file with the wakers, of the reasons with which decisions make an object Stalled.
const stalledReasons = "Stalled"

// checkPermanence expects that the rows of these reasons say that the object is Stalled.
func checkPermanence(t *testing.T, table table, reasons []string) {
	for _, reason := range reasons {
		if row := rowOf(table, reason); row == nil || !strings.Contains(string(row.state), "Stalled") {
			t.Errorf("a decision of the controller of a %s makes it Stalled with the reason %s, and its row does not say so", table.kind, reason)
		}
	}
}

// shared adds to the page the reasons of the first table that objects of this table also have.
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
