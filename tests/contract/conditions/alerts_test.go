package conditions_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/tests/contract/pages"
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
var resultStates = []reasons.State{reasons.Failing, reasons.FailingOften, reasons.FailingForGood, reasons.NoFailure, reasons.Locked}

// TestAlertsPageHasTheEventOfEachReason keeps the table of the reasons that Ready of a Stack has while the Stack is not ready. WaveNotOpen has no
// event. Whether the events are recorded so is checked by the tests of the package stack, for each reason.
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
	for _, row := range reasons.Of("Stack").Rows {
		name, when := row.Reason, "within a minute"
		if other := eventNames[row.Reason]; other != "" {
			name = other
		}
		_, without := notSituations[row.Reason]
		switch {
		case without, row.Reason == "WaveNotOpen", row.State == reasons.UpToDate, row.State == reasons.Working, row.State == reasons.NotSet, row.Reason == "ProgressingWithRetry":
			continue
		case name == row.Reason && isResult(row.State):
			name, when = "StackUpdateFailure", "with each attempt that fails"
		case isResult(row.State), row.Reason == "AwaitingResources":
			when = "once"
		case row.State == reasons.Stalled:
			when = "at once"
		case row.State == reasons.WaitingOrStalled:
			when = "within a minute; at once when Stalled"
		}
		fmt.Fprintf(table, "| `%s` | `%s` | %s |\n", row.Reason, name, when)
	}
	table.WriteString("\n" + alertsTable + after)
	pages.Keep(t, alertsPage, table.String(), updateCommand, *updateDocs)
}

func isResult(s reasons.State) bool { return slices.Contains(resultStates, s) }
