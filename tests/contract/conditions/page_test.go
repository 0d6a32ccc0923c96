// Package conditions_test writes docs/conditions.md from the table of all reasons in internal/report/reasons. It checks that the code uses each reason,
// that only the wakers on the page bring an object back, and that a test provokes each reason.
package conditions_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/tests/contract/pages"
)

// document is the page, relative to the root of the repository.
const document = "docs/conditions.md"

var updateDocs = flag.Bool("update-docs", false, "write "+document)

// updateCommand is the command that writes the page.
const updateCommand = "go test ./tests/contract/conditions -update-docs"

func TestConditionsPageIsUpToDate(t *testing.T) {
	tests := pages.FindTests(t)
	var page strings.Builder
	page.WriteString(introduction + "\n" + pages.AboutMarks("../") + "\n")
	for _, table := range reasons.Tables() {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n", table.Kind, strings.TrimSpace(descriptions[table.Kind]))
		page.WriteString("| reason | state | meaning | what wakes the object | what to do | test |\n|---|---|---|---|---|---|\n")
		wakers := table.Wakers()
		checkPermanence(t, table, wakers[reasons.StalledReasons])
		delete(wakers, reasons.StalledReasons)
		for _, row := range table.Rows {
			checkWakers(t, row, wakers[row.Reason])
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s | %s |\n", row.Reason, row.State, pages.Cell(row.Means),
				pages.Cell(row.Wakes(wakers[row.Reason])), pages.Cell(row.Todo), tests.Links(t, row.Tests, "../"))
			delete(wakers, row.Reason)
		}
		shared(t, &page, table, wakers)
	}
	pages.Keep(t, document, page.String(), updateCommand, *updateDocs)
}

// checkWakers expects that a row that time wakes says when, that no row repeats one of its wakers, and that the wakers have names.
func checkWakers(t *testing.T, row reasons.Row, wakers []string) {
	if slices.Contains(wakers, "time") && row.When == "" {
		t.Errorf("%s: time wakes it, and nothing says when", row.Reason)
	}
	for _, waker := range wakers {
		if row.When == reasons.WakerNames([]string{waker}) {
			t.Errorf("%s: the row repeats that %s wakes it", row.Reason, row.When)
		}
		if waker != "time" && reasons.WakerNames([]string{waker}) == waker {
			t.Errorf("the waker %q has no name", waker)
		}
	}
}

// checkPermanence expects that the rows of these reasons say that the object is Stalled.
func checkPermanence(t *testing.T, table reasons.Table, permanent []string) {
	for _, reason := range permanent {
		if row := table.Row(reason); row == nil || !strings.Contains(string(row.State), "Stalled") {
			t.Errorf("a decision of the controller of a %s makes it Stalled with the reason %s, and its row does not say so", table.Kind, reason)
		}
	}
}

// shared adds to the page the reasons of the first table that objects of this table also have.
func shared(t *testing.T, page *strings.Builder, table reasons.Table, wakers map[string][]string) {
	if len(wakers) == 0 {
		return
	}
	page.WriteString(sharing)
	for _, row := range reasons.Of("Stack").Rows {
		all, found := wakers[row.Reason]
		if !found {
			continue
		}
		delete(wakers, row.Reason)
		fmt.Fprintf(page, "| `%s` | %s |\n", row.Reason, reasons.WakerNames(all))
	}
	for reason := range wakers {
		t.Errorf("a decision of the controller of a %s has the reason %s, which has no row", table.Kind, reason)
	}
}
