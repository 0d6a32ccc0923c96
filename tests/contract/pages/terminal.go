package pages

import (
	"fmt"
	"html"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The size of a character of a picture, and the space around the text, in pixels.
const (
	charWidth, lineHeight, margin = 8, 19, 16
)

// painted matches text with a style of a terminal.
var painted = regexp.MustCompile("\x1b\\[(\\d+)m(.*?)\x1b\\[0m")

// Terminal draws the output of a terminal as SVG.
func Terminal(text string) string {
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
