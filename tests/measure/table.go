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
