package conditions_test

import (
	"fmt"
	"go/format"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/pages"
)

// explanations is the file with the rows for programs that explain a reason.
const explanations = "internal/reasons/zz_generated.explanations.go"

func TestExplanationsForProgramsAreThoseOfTheRows(t *testing.T) {
	var content strings.Builder
	fmt.Fprintf(&content, "// Code generated from tests/conditions by %s. DO NOT EDIT.\n\npackage reasons\n\n", updateCommand)
	content.WriteString("func explanations() []Explanation {\n\treturn []Explanation{\n")
	for _, table := range tables {
		wakers := wakersOf(t, table)
		for _, row := range table.rows {
			explain(&content, table.kind, row, wakes(t, row, wakers[row.reason]))
			delete(wakers, row.reason)
		}
		for _, row := range tables[0].rows {
			if all, shared := wakers[row.reason]; shared {
				explain(&content, table.kind, row, named(t, all))
			}
		}
	}
	content.WriteString("\t}\n}\n")
	formatted, err := format.Source([]byte(content.String()))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	pages.Keep(t, explanations, string(formatted), updateCommand, *updateDocs)
}

// explain writes a row as plain text, without the links of the page.
func explain(content *strings.Builder, kind string, row row, wakes string) {
	plain := func(text string) string { return link.ReplaceAllString(strings.Join(strings.Fields(text), " "), "$1") }
	fmt.Fprintf(content, "{\nKind: %q, Reason: %q, State: %q,\nMeans: %q,\n", kind, row.reason, strings.ReplaceAll(string(row.state), "*", ""), plain(row.means))
	fmt.Fprintf(content, "Wakes: %q,\nTodo: %q,\n},\n", plain(wakes), plain(row.todo))
}
