package measure

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Samples are durations of the same thing.
type Samples []time.Duration

// Median returns the middle one, of an even number the lower of the two.
func (s Samples) Median() time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[(len(sorted)-1)/2]
}

// Table prints rows of cells.
type Table struct{ writer *tabwriter.Writer }

// NewTable begins a table with the headers.
func NewTable(out io.Writer, headers ...string) Table {
	writer := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(writer, "\n%s\n", strings.Join(headers, "\t"))
	return Table{writer: writer}
}

// Row prints samples in milliseconds.
func (t Table) Row(name string, s Samples) {
	t.Cells(name, Milliseconds(s.Median()), Milliseconds(slices.Min(s)), Milliseconds(slices.Max(s)))
}

// Cells prints a row of texts.
func (t Table) Cells(cells ...string) { fmt.Fprintln(t.writer, strings.Join(cells, "\t")) }

// Flush prints what was collected, with the columns aligned.
func (t Table) Flush() { _ = t.writer.Flush() }

// Milliseconds formats a time in whole milliseconds.
func Milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// Seconds formats a time in hundredths of a second.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// Megabytes formats a size in millions of bytes.
func Megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Limits are what was held against a limit.
type Limits struct{ checked []limit }

type limit struct {
	what      string
	got, most float64
}

// Check holds a measurement against the most that it may be.
func (l *Limits) Check(what string, got, most float64) {
	l.checked = append(l.checked, limit{what: what, got: got, most: most})
}

// Judge prints how the measurements stand to their limits. It returns an error when one is exceeded, they are enforced and the
// machine was quiet: on a busy one the figures say little.
func (l *Limits) Judge(out io.Writer, machine *Machine, enforce bool) error {
	if len(l.checked) == 0 {
		return nil
	}
	t := NewTable(out, "limits", "measured", "limit", "")
	var exceeded []string
	for _, c := range l.checked {
		verdict := "kept"
		if c.got > c.most {
			verdict = "EXCEEDED"
			exceeded = append(exceeded, fmt.Sprintf("%s: %.2f, more than %.2f", c.what, c.got, c.most))
		}
		t.Cells(c.what, fmt.Sprintf("%.2f", c.got), fmt.Sprintf("%.2f", c.most), verdict)
	}
	t.Flush()
	fmt.Fprintln(out, machine.Description())
	switch {
	case len(exceeded) == 0:
		return nil
	case !machine.Quiet():
		fmt.Fprintln(out, "The machine was busy with other things: exceeded limits are not an error.")
		return nil
	case !enforce:
		return nil
	}
	return fmt.Errorf("limits are exceeded: %s", strings.Join(exceeded, "; "))
}
