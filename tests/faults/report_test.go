package faults_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// figures are what the report tells.
type figures struct {
	runs     int // that were to be played
	seed     uint64
	stacks   int // in each run
	worlds   int
	checked  int // statuses
	took     time.Duration
	outcomes []*outcome // of the runs that were fine
}

// recoveries are the times of the runs with one kind of fault.
type recoveries struct {
	kind  string
	times []time.Duration
}

func (r *recoveries) row() string {
	slices.Sort(r.times)
	median, worst := r.times[len(r.times)/2], r.times[len(r.times)-1]
	return fmt.Sprintf("| %s | %d | %.1f s | %.1f s |\n", r.kind, len(r.times), median.Seconds(), worst.Seconds())
}

// byKind counts a run for each kind of fault that it had, once. The first two are those without and those with faults.
func byKind(outcomes []*outcome) []*recoveries {
	all := []*recoveries{{kind: "none"}, {kind: "any"}}
	find := func(kind string) *recoveries {
		for _, r := range all {
			if r.kind == kind {
				return r
			}
		}
		all = append(all, &recoveries{kind: kind})
		return all[len(all)-1]
	}
	for _, o := range outcomes {
		kinds := append(slices.Clone(o.faults), "any")
		if len(o.faults) == 0 {
			kinds = []string{"none"}
		}
		slices.Sort(kinds)
		for _, kind := range slices.Compact(kinds) {
			r := find(kind)
			r.times = append(r.times, o.recovery)
		}
	}
	slices.SortStableFunc(all[2:], func(a, b *recoveries) int { return strings.Compare(a.kind, b.kind) })
	return slices.DeleteFunc(all, func(r *recoveries) bool { return len(r.times) == 0 })
}

// write writes the page.
func (f *figures) write(path string) error {
	helped, injected := 0, 0
	for _, o := range f.outcomes {
		helped += o.forgotten
		injected += len(o.faults)
	}
	var page strings.Builder
	fmt.Fprintf(&page, reportHead, f.runs, f.seed, f.stacks, len(f.outcomes), injected, f.checked, helped, f.worlds, f.took.Minutes())
	for _, r := range byKind(f.outcomes) {
		page.WriteString(r.row())
	}
	page.WriteString(reportFoot)
	return os.WriteFile(path, []byte(page.String()), 0o644)
}
