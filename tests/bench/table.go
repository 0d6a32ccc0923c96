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

// table prints samples in milliseconds.
type table struct{ writer *tabwriter.Writer }

func newTable(out io.Writer, headers ...string) table {
	writer := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(writer, "\n%s\n", strings.Join(headers, "\t"))
	return table{writer: writer}
}

func (t table) row(name string, s samples) {
	milliseconds := func(d time.Duration) int64 { return d.Milliseconds() }
	fmt.Fprintf(t.writer, "%s\t%d ms\t%d ms\t%d ms\n", name, milliseconds(s.median()), milliseconds(slices.Min(s)), milliseconds(slices.Max(s)))
}

func (t table) flush() { _ = t.writer.Flush() }
