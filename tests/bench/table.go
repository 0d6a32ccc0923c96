package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// samples are durations of the same thing.
type samples []time.Duration

// median returns the middle one, of an even number the lower of the two.
func (s samples) median() time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[(len(sorted)-1)/2]
}

// table prints rows of cells.
type table struct{ writer *tabwriter.Writer }

func newTable(out io.Writer, headers ...string) table {
	writer := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(writer, "\n%s\n", strings.Join(headers, "\t"))
	return table{writer: writer}
}

// row prints samples in milliseconds.
func (t table) row(name string, s samples) {
	t.cells(name, milliseconds(s.median()), milliseconds(slices.Min(s)), milliseconds(slices.Max(s)))
}

func (t table) cells(cells ...string) { fmt.Fprintln(t.writer, strings.Join(cells, "\t")) }

func (t table) flush() { _ = t.writer.Flush() }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
