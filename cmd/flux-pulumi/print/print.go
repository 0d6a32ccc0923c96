// Package print writes for people: steps and tables, in colours where there is a terminal that wants them.
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
	// spinner moves while something goes on.
	spinner         = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	spinnerInterval = 250 * time.Millisecond
	// quietInterval is the time between lines about the same thing where they stay.
	quietInterval = 10 * time.Second
)

// Printer writes to one stream.
type Printer struct {
	out io.Writer
	// Colour is whether styles are shown, Live whether a line can be written over.
	Colour, Live bool
	// width is that of the terminal, 0 without one.
	width int
	// shown is the progress that was shown last, of which state is the first part, and at is when.
	shown, state string
	at           time.Duration
}

// New prints to the stream. It has colours on a terminal, unless NO_COLOR is set or the terminal is "dumb". With CLICOLOR_FORCE it has them
// everywhere.
func New(out io.Writer, getenv func(string) string) *Printer {
	p := &Printer{out: out, Colour: getenv("CLICOLOR_FORCE") != "" && getenv("NO_COLOR") == ""}
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || getenv("TERM") == "dumb" {
		return p
	}
	p.Live, p.Colour = true, getenv("NO_COLOR") == ""
	if width, _, err := term.GetSize(int(file.Fd())); err == nil {
		p.width = width
	}
	return p
}

// Write writes what is ready to be shown.
func (p *Printer) Write(text []byte) (int, error) {
	p.clear()
	return p.out.Write(text)
}

// Line writes a line.
func (p *Printer) Line(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Paint is the text in a style.
func (p *Printer) Paint(style Style, text string) string {
	if !p.Colour || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// Step says what is done now, Waiting what is waited for, Success what was achieved, Failure what was not. The marks are those of Flux.
func (p *Printer) Step(format string, args ...any)    { p.marked(Plain, "►", format, args) }
func (p *Printer) Waiting(format string, args ...any) { p.marked(Busy, "◎", format, args) }
func (p *Printer) Success(format string, args ...any) { p.marked(Good, "✔", format, args) }
func (p *Printer) Failure(format string, args ...any) { p.marked(Bad, "✗", format, args) }
func (p *Printer) Warning(format string, args ...any) { p.marked(Busy, "⚠", format, args) }

func (p *Printer) marked(style Style, mark, format string, args []any) {
	p.Line("%s %s", p.Paint(style, mark), fmt.Sprintf(format, args...))
}

// Progress shows what something is doing, and how far it is: over the last such line on a terminal, else as a line of its own when it does
// something else, or is further after a while.
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

// over writes a line over the last one.
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

// clear removes the line of progress.
func (p *Printer) clear() {
	if p.Live && p.shown != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.shown, p.state = "", ""
}

// Clean is one line of what somebody else wrote: a terminal understands nothing in it.
func Clean(text string) string {
	return strings.Join(strings.Fields(plaintext.Strip(strings.ToValidUTF8(text, "\uFFFD"))), " ")
}

// cut returns at most so many characters.
func cut(text string, width int) string {
	runes := []rune(text)
	if width < 1 || len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}
