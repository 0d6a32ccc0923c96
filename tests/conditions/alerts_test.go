package conditions_test

import (
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

const (
	alertsPage = "docs/guides/alerts.md"
	// alertsTable begins and ends the table of the page.
	alertsTable = "<!-- events about reasons -->"
)

// eventNames has the reasons of the Stack whose events have another reason.
var eventNames = map[string]string{
	"SpecInvalid": "StackConfigInvalid", "UpdateConflict": "StackUpdateConflictDetected", "UpdateInterrupted": "StackUpdateInterrupted",
	"ApprovalRequired": "ApprovalRequired", "PlanRejected": "PlanRejected",
}

// resultStates are the states of a Stack whose last update failed: the event is about the update.
var resultStates = []state{failing, failingOften, noFailure, locked}

// TestAlertsPageHasTheEventOfEachReason keeps the table of the reasons that Ready of a Stack has while the Stack is not ready. Whether the events
// are recorded so is checked by the tests of the package stack, for each reason.
func TestAlertsPageHasTheEventOfEachReason(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(alertsPage)))
	g.Expect(err).NotTo(HaveOccurred())
	before, rest, found := strings.Cut(string(content), alertsTable)
	g.Expect(found).To(BeTrue())
	_, after, found := strings.Cut(rest, alertsTable)
	g.Expect(found).To(BeTrue())
	table := &strings.Builder{}
	fmt.Fprintf(table, "%s%s\n\n| reason | event | when |\n|---|---|---|\n", before, alertsTable)
	for _, row := range stackRows {
		name, when := row.reason, "within a minute"
		if other := eventNames[row.reason]; other != "" {
			name = other
		}
		_, without := notSituations[row.reason]
		switch {
		case without, row.state == upToDate, row.state == working, row.state == notSet, row.reason == "ProgressingWithRetry":
			continue
		case name == row.reason && isResult(row.state):
			name, when = "StackUpdateFailure", "with each attempt that fails"
		case isResult(row.state):
			when = "once"
		case row.state == stalled:
			when = "at once"
		case row.state == waitingOrStalled:
			when = "within a minute; at once when Stalled"
		}
		fmt.Fprintf(table, "| `%s` | `%s` | %s |\n", row.reason, name, when)
	}
	table.WriteString("\n" + alertsTable + after)
	pages.Keep(t, alertsPage, table.String(), updateCommand, *updateDocs)
}

func isResult(s state) bool { return slices.Contains(resultStates, s) }
