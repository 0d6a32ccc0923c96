package faults_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// figures are the times of the runs with one kind of fault.
type figures struct {
	kind  string
	times []time.Duration
}

func (f *figures) row() string {
	slices.Sort(f.times)
	median, worst := f.times[len(f.times)/2], f.times[len(f.times)-1]
	return fmt.Sprintf("| %s | %d | %.1f s | %.1f s |\n", f.kind, len(f.times), median.Seconds(), worst.Seconds())
}

// byKind counts a run for each kind of fault that it had.
func byKind(outcomes []*outcome) []*figures {
	var all []*figures
	find := func(kind string) *figures {
		for _, f := range all {
			if f.kind == kind {
				return f
			}
		}
		all = append(all, &figures{kind: kind})
		return all[len(all)-1]
	}
	none := find("none")
	for _, o := range outcomes {
		for _, kind := range o.faults {
			f := find(kind)
			f.times = append(f.times, o.recovery)
		}
		if len(o.faults) == 0 {
			none.times = append(none.times, o.recovery)
		}
	}
	all = slices.DeleteFunc(all, func(f *figures) bool { return len(f.times) == 0 })
	slices.SortStableFunc(all[min(1, len(all)):], func(a, b *figures) int { return strings.Compare(a.kind, b.kind) })
	return all
}

// writeReport writes the page.
func writeReport(path string, runs, checked int, outcomes []*outcome) error {
	helped, injected := 0, 0
	for _, o := range outcomes {
		helped += o.forgotten
		injected += len(o.faults)
	}
	var page strings.Builder
	fmt.Fprintf(&page, reportHead, runs, *seed, manyStacks, len(outcomes), runs, injected, checked, helped, *seed, runs)
	for _, f := range byKind(outcomes) {
		page.WriteString(f.row())
	}
	page.WriteString(reportFoot)
	return os.WriteFile(path, []byte(page.String()), 0o644)
}
