// Package print writes for people: steps and tables, with colours on terminals that support them.
package print

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// Style is how text looks on a terminal.
type Style string

// The styles, as parameters of the escape sequence.
const (
	Plain  Style = ""
	Good   Style = "32"
	Bad    Style = "31"
	Busy   Style = "33"
	Faint  Style = "2"
	Strong Style = "1"
)

const (
	// spinner has the marks that are shown one after the other while a command waits.
	spinner         = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	spinnerInterval = 250 * time.Millisecond
	// quietInterval is the time between two lines about the same state, for outputs that cannot overwrite a line.
	quietInterval = 10 * time.Second
)

// Printer writes to one stream.
type Printer struct {
	out io.Writer
	// Colour is whether styles are shown, and Live whether a line can be overwritten.
	Colour, Live bool
	// width is the width of the terminal, 0 without one.
	width int
	// shown is the progress that was shown last, state is its first part, and at is when it was shown.
	shown, state string
	at           time.Duration
}

// New returns a Printer for the stream. The Printer uses colours on a terminal, unless NO_COLOR is set or the terminal is "dumb". With
// CLICOLOR_FORCE it uses colours everywhere, unless NO_COLOR is set.
func New(out io.Writer, getenv func(string) string) *Printer {
	p := &Printer{out: out, Colour: getenv("CLICOLOR_FORCE") != "" && getenv("NO_COLOR") == ""}
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || getenv("TERM") == "dumb" || !takesEscapes(file) {
		return p
	}
	p.Live, p.Colour = true, getenv("NO_COLOR") == ""
	if width, _, err := term.GetSize(int(file.Fd())); err == nil {
		p.width = width
	}
	return p
}

// Write writes text that is already formatted.
func (p *Printer) Write(text []byte) (int, error) {
	p.Clear()
	return p.out.Write(text)
}

// Line writes a line.
func (p *Printer) Line(format string, args ...any) {
	p.Clear()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Paint returns the text in a style.
func (p *Printer) Paint(style Style, text string) string {
	if !p.Colour || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// Step writes a line about what is done now, Waiting about what the command waits for, Success about what was achieved, and Failure about
// what was not. The marks are those of Flux.
func (p *Printer) Step(format string, args ...any)    { p.marked(Plain, "►", format, args) }
func (p *Printer) Waiting(format string, args ...any) { p.marked(Busy, "◎", format, args) }
func (p *Printer) Success(format string, args ...any) { p.marked(Good, "✔", format, args) }
func (p *Printer) Failure(format string, args ...any) { p.marked(Bad, "✗", format, args) }
func (p *Printer) Warning(format string, args ...any) { p.marked(Busy, "⚠", format, args) }

// marked removes the escape sequences of what others wrote, and keeps its lines.
func (p *Printer) marked(style Style, mark, format string, args []any) {
	p.Line("%s %s", p.Paint(style, mark), plaintext.Strip(strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")))
}

// Progress shows what something is doing, and how far it is. On a terminal, it overwrites the last such line. Elsewhere, it writes a new
// line when the state has changed, or when the detail has changed and some time has passed.
func (p *Printer) Progress(state, detail string, elapsed time.Duration) {
	line := Clean(state)
	if detail != "" {
		line += ": " + Clean(detail)
	}
	if p.Live {
		p.over(line, elapsed)
		return
	}
	if state != p.state || line != p.shown && elapsed-p.at >= quietInterval {
		fmt.Fprintf(p.out, "◎ %s\n", line)
		p.state, p.shown, p.at = state, line, elapsed
	}
}

// over overwrites the last line.
func (p *Printer) over(line string, elapsed time.Duration) {
	spinner := []rune(spinner)
	mark := string(spinner[int(elapsed/spinnerInterval)%len(spinner)])
	after := " (" + elapsed.Round(time.Second).String() + ")"
	if p.width > 0 {
		line = cut(line, p.width-len([]rune(after))-3)
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s %s%s", p.Paint(Busy, mark), line, p.Paint(Faint, after))
	p.shown = line
}

// Clear removes the line of progress, if there is one.
func (p *Printer) Clear() {
	if p.Live && p.shown != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.shown, p.state = "", ""
}

// Clean returns text from elsewhere as a single line, without escape sequences for terminals.
func Clean(text string) string {
	return strings.Join(strings.Fields(plaintext.Strip(strings.ToValidUTF8(text, "\uFFFD"))), " ")
}

// cut returns at most width characters of the text.
func cut(text string, width int) string {
	runes := []rune(text)
	if width < 1 || len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}
