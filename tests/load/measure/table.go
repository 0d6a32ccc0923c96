package measure

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Samples are durations of repeated measurements of the same thing.
type Samples []time.Duration

// Median returns the middle sample; of an even number of samples, the lower one of the two in the middle.
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

// Flush prints the collected rows with aligned columns.
func (t Table) Flush() { _ = t.writer.Flush() }

// Milliseconds formats a time in whole milliseconds.
func Milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// Seconds formats a time in hundredths of a second.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// Megabytes formats a size in millions of bytes.
func Megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Limits holds measurements and their limits.
type Limits struct{ checked []limit }

type limit struct {
	what      string
	got, most float64
}

// Check adds a measurement and its maximum.
func (l *Limits) Check(what string, got, most float64) {
	l.checked = append(l.checked, limit{what: what, got: got, most: most})
}

// Report prints the measurements with their limits. It returns an error if a limit is exceeded, the limits are enforced and the machine was
// quiet: on a busy machine the measurements mean little.
func (l *Limits) Report(out io.Writer, machine *Machine, enforce bool) error {
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
