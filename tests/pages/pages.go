// Package pages keeps pages of the documentation as tables in tests say, and finds the tests that the tables name.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Keep expects that a file of the repository has the text, or writes it. The command is the one that writes it.
func Keep(t *testing.T, name, text, command string, write bool) {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(name))
	if write {
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
	}
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content) == text).To(BeTrue(), "%s is not what the rows say; run: %s", name, command)
}

// Cell makes text fit into a cell of a table.
func Cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// Links names tests and where they are, from a page that has the root of the repository at this path.
func (a *Tests) Links(t *testing.T, names []string, root string) string {
	t.Helper()
	var all []string
	for _, name := range names {
		file, found := a.File(name)
		if !found {
			t.Errorf("there is no test %s", name)
			continue
		}
		_, short, _ := strings.Cut(name, ".")
		all = append(all, fmt.Sprintf("[%s](%s%s)%s", Cell(short), root, file, a.Mark(name)))
	}
	return strings.Join(all, "<br>")
}

// Mark is what stands behind the link to a test: nothing, or that it is only in the long suite.
func (a *Tests) Mark(name string) string {
	if a.Long(name) {
		return " (long)"
	}
	return ""
}

// AboutMarks explains the mark, on a page that has the root of the repository at this path.
func AboutMarks(root string) string {
	return fmt.Sprintf("Tests marked (long) run only in the [long suite](%sCONTRIBUTING.md#tests).", root)
}
