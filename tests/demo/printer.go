package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
)

// indent is how far everything below a step's title is moved to the right.
const indent = "      "

// printer shows numbered steps with the time since the start.
type printer struct {
	out   io.Writer
	start time.Time
	step  int
	steps int
}

func newPrinter(out io.Writer, steps int) *printer {
	return &printer{out: out, start: time.Now(), steps: steps}
}

// title starts a step.
func (p *printer) title(format string, args ...any) {
	p.step++
	title := fmt.Sprintf(format, args...)
	_, _ = fmt.Fprintf(p.out, "\n[%d/%d] %-66s %6.1fs\n", p.step, p.steps, title, time.Since(p.start).Seconds())
}

// text prints lines below the title.
func (p *printer) text(format string, args ...any) {
	_, _ = fmt.Fprintln(p, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// Write prints whole lines below the title.
func (p *printer) Write(lines []byte) (int, error) {
	for line := range bytes.Lines(lines) {
		if _, err := io.WriteString(p.out, strings.TrimRight(indent+string(line), " \n")+"\n"); err != nil {
			return 0, err
		}
	}
	return len(lines), nil
}

// plain prints text that is not part of a step.
func (p *printer) plain(text string) {
	_, _ = io.WriteString(p.out, text)
}
