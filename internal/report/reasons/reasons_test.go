package reasons

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestExplanationsAreThoseOfTheRows(t *testing.T) {
	g := NewWithT(t)
	found, known := Find("Stack", "UpdateConflict")
	g.Expect(known).To(BeTrue())
	g.Expect(found.State).To(Equal("waiting, Stalled after 10 minutes"))
	g.Expect(found.Wakes).NotTo(BeEmpty())
	_, known = Find("Stack", "NoSuchReason")
	g.Expect(known).To(BeFalse())

	shared, known := Find("Update", "SourceNotReady")
	g.Expect(known).To(BeTrue(), "an Update waits for the same as its Stack")
	g.Expect(shared.Wakes).NotTo(BeEmpty())
	for _, explanation := range All() {
		g.Expect(explanation.Means).NotTo(BeEmpty(), explanation.Reason)
		g.Expect(explanation.Means+explanation.Wakes+explanation.Todo).NotTo(ContainSubstring("]("), explanation.Reason)
	}
}

func TestRowsAreDistinct(t *testing.T) {
	g := NewWithT(t)
	for _, table := range Tables() {
		seen := map[string]bool{}
		for _, row := range table.Rows {
			g.Expect(seen[row.Reason]).To(BeFalse(), "%s of a %s", row.Reason, table.Kind)
			seen[row.Reason] = true
		}
	}
}
