package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// page is the documentation of the command line tool.
const page = "docs/cli.md"

// output matches a place on the page for the content of a golden file.
var output = regexp.MustCompile("(?m)^<!-- output: (\\S+) -->\n(?:\n```text\n(?s:.*?)\n```\n)?")

func TestPageShowsWhatTheCommandLinePrints(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), page))
	g.Expect(err).NotTo(HaveOccurred())
	text := output.ReplaceAllStringFunc(string(content), func(place string) string {
		name := output.FindStringSubmatch(place)[1]
		golden, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
		g.Expect(err).NotTo(HaveOccurred())
		return fmt.Sprintf("<!-- output: %s -->\n\n```text\n%s```\n", name, golden)
	})
	pages.Keep(t, page, text, updateCommand, *updateDocs)
	for line := range strings.SplitSeq(cli(t.Context(), today, "__complete", "").out, "\n") {
		name, _, isCommand := strings.Cut(line, "\t")
		if isCommand && name != "help" {
			g.Expect(text).To(MatchRegexp("[ `]"+name+"[` ]"), "the page does not have the command")
		}
	}
}

func TestPageShowsATerminal(t *testing.T) {
	g := NewWithT(t)
	var shown strings.Builder
	code := on(t.Context(), &shown, &shown, today, map[string]string{"CLICOLOR_FORCE": "1"}, "explain", "stack", "billing", "-n", recorded)
	g.Expect(code).To(Equal(0))
	pages.Keep(t, "docs/cli-explain.svg", pages.Terminal("$ flux pulumi explain stack billing -n apps\n"+shown.String()), updateCommand, *updateDocs)
}
