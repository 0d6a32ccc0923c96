package cli_test

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

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
	pages.Keep(t, "docs/cli-explain.svg", picture("$ flux pulumi explain stack billing -n apps\n"+shown.String()), updateCommand, *updateDocs)
}

// The size of a character of a picture, and the space around the text, in pixels.
const (
	charWidth, lineHeight, margin = 8, 19, 16
)

// painted matches text with a style of a terminal.
var painted = regexp.MustCompile("\x1b\\[(\\d+)m(.*?)\x1b\\[0m")

// picture draws the output of a terminal as SVG.
func picture(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	width := 0
	for _, line := range lines {
		width = max(width, utf8.RuneCountInString(painted.ReplaceAllString(line, "$2")))
	}
	width, height := width*charWidth+2*margin, len(lines)*lineHeight+2*margin
	var svg strings.Builder
	fmt.Fprintf(&svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\">\n", width, height)
	svg.WriteString("<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}" +
		".s1{font-weight:bold}.s2{fill:#8b949e}.s31{fill:#ff7b72}.s32{fill:#7ee787}.s33{fill:#e3b341}</style>\n")
	fmt.Fprintf(&svg, "<rect width=\"100%%\" height=\"100%%\" rx=\"8\" fill=\"#0d1117\"/>\n")
	for i, line := range lines {
		styled := painted.ReplaceAllString(html.EscapeString(line), `<tspan class="s$1">$2</tspan>`)
		fmt.Fprintf(&svg, "<text x=\"%d\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", margin, margin+(i+1)*lineHeight-5, styled)
	}
	svg.WriteString("</svg>\n")
	return svg.String()
}
