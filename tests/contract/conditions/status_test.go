package conditions_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/tests/tools"
)

var inCode = regexp.MustCompile("`([A-Za-z]+)`")

// situations are the states that a row of the specification can describe, by whether its columns Reconciling and Stalled are filled.
var situations = map[[2]bool][]reasons.State{
	{false, false}: {reasons.UpToDate, reasons.Working},
	{true, false}: {
		reasons.Working, reasons.Waiting, reasons.WaitingOrStalled, reasons.Failing, reasons.NoFailure, reasons.Transient, reasons.Locked,
	},
	{false, true}: {reasons.Stalled, reasons.WaitingOrStalled, reasons.FailingOften, reasons.FailingForGood, reasons.Locked},
}

// notSituations has the reasons that the table of situations does not contain, with the explanation.
var notSituations = map[string]string{
	"TransientFailure": "it is that of an Update",
	"NoDrift":          "the condition Drifted has a section of its own", "DriftDetected": "as well",
	"DriftComesBack": "as well", "DriftCheckFailed": "as well",
}

func TestSpecificationHasTheSituationsOfAStack(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "spec", "v1", "stacks.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, rows, found := strings.Cut(string(page), "| situation | Ready | Reconciling | Stalled | what wakes the Stack |\n|---|---|---|---|---|\n")
	g.Expect(found).To(BeTrue())
	rows, _, _ = strings.Cut(rows, "\n\n")
	stacks := reasons.Of("Stack")
	shown := map[string]bool{}
	for line := range strings.Lines(rows) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		g.Expect(cells).To(HaveLen(5), line)
		for _, cell := range cells[1:4] {
			for _, reason := range inCode.FindAllStringSubmatch(cell, -1) {
				g.Expect(stacks.Row(reason[1])).NotTo(BeNil(), "%s in %s", reason[1], line)
				shown[reason[1]] = true
			}
		}
		columns := [2]bool{strings.TrimSpace(cells[2]) != "", strings.TrimSpace(cells[3]) != ""}
		for _, reason := range inCode.FindAllStringSubmatch(cells[1], -1) {
			g.Expect(situations[columns]).To(ContainElement(stacks.Row(reason[1]).State), "%s in %s", reason[1], line)
		}
	}
	for _, row := range stacks.Rows {
		_, without := notSituations[row.Reason]
		g.Expect(shown[row.Reason]).To(Equal(!without && row.State != reasons.NotSet), row.Reason)
	}
}
