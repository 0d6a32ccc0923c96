package campaign

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// maxBroken is after how many runs in a row that could not even begin a world is given up.
const maxBroken = 3

// Options are flags of a test.
type Options struct {
	// Runs is 0 for the short form.
	Runs   int
	Seed   uint64
	Kinds  string
	Only   int
	List   bool
	Report string
}

// BindFlags makes the flags known.
func (o *Options) BindFlags(flags *flag.FlagSet) {
	flags.IntVar(&o.Runs, "runs", 0, "how many runs with random faults; 0 is the short form, of some kinds that heal quickly")
	flags.Uint64Var(&o.Seed, "seed", 1, "what the schedules of the runs follow from")
	flags.StringVar(&o.Kinds, "kinds", "", "comma-separated kinds of faults to take; empty means all")
	flags.IntVar(&o.Only, "only", 0, "the number of the only run to play; 0 means all")
	flags.BoolVar(&o.List, "list", false, "print all kinds of faults, and do nothing else")
	flags.StringVar(&o.Report, "report", "", "the file to write the figures to")
}

// Result is what came of all runs.
type Result struct {
	Runs     int // that were to be played
	Checked  int // statuses
	Planned  int // statuses of Updates that carried out an approved plan
	Took     time.Duration
	Outcomes []*Outcome // of the runs that were fine
}

// campaign is all runs of a test, which several worlds take from one counter.
type campaign struct {
	t     *testing.T
	plan  *Plan
	count int

	mu       sync.Mutex
	taken    int
	failed   int
	outcomes []*Outcome
}

// Play plays runs with faults of the catalogue in the worlds, and returns what came of them. The short form has shortRuns.
func (o *Options) Play(t *testing.T, worlds []*World, catalogue []Fault, plan *Plan, shortRuns int) *Result {
	wanted := slices.DeleteFunc(catalogue, func(f Fault) bool {
		return o.Runs == 0 && o.Kinds == "" && !f.Short || o.Kinds != "" && !slices.Contains(strings.Split(o.Kinds, ","), f.Kind)
	})
	if len(wanted) == 0 {
		t.Fatalf("there is no kind of fault %q", o.Kinds)
	}
	plan.choose(o.Seed, wanted, o.Kinds != "")
	c, began := &campaign{t: t, count: o.Runs, plan: plan}, time.Now()
	if c.count == 0 {
		c.count = shortRuns
	}
	if o.Only > 0 {
		c.taken, c.count = o.Only-1, o.Only
	}
	t.Logf("seed %d, %d runs in %d worlds", o.Seed, c.count, len(worlds))
	var playing sync.WaitGroup
	for _, w := range worlds {
		playing.Go(func() { c.playIn(t.Context(), w) })
	}
	playing.Wait()
	result := &Result{Runs: c.count, Took: time.Since(began), Outcomes: c.outcomes}
	for _, w := range worlds {
		checked, problems := w.Problems()
		result.Checked += checked
		result.Planned += w.gate.planned()
		if problems != nil {
			t.Errorf("statuses in world %d contradict themselves: %v", w.Number, problems)
		}
	}
	t.Logf("seed %d: %d of %d runs are fine, in %s; %d statuses were checked, %d of updates that carried out a plan", o.Seed, len(c.outcomes), c.count,
		result.Took.Round(time.Second), result.Checked, result.Planned)
	if o.Only == 0 && len(c.outcomes)+c.failed < c.count {
		t.Errorf("only %d of %d runs were played", len(c.outcomes)+c.failed, c.count)
	}
	return result
}

// playIn plays runs in a world until there are none left, or until the world is beyond repair.
func (c *campaign) playIn(ctx context.Context, w *World) {
	apps := make([]*App, c.plan.Stacks)
	for broken := 0; broken < maxBroken; {
		run := c.next()
		if run == 0 {
			return
		}
		events := c.plan.schedule(run)
		begun := false
		err := w.Renew(ctx, apps, fmt.Sprintf("f%d", run))
		var o *Outcome
		if err == nil {
			begun, broken = true, 0
			o, err = w.play(ctx, run, apps, events)
		}
		if err == nil {
			c.succeed(w, o, events)
			continue
		}
		if !begun {
			broken++
			err = fmt.Errorf("deploy: %w", err)
		}
		c.fail(ctx, w, run, err, events, apps)
		w.abandon(apps)
		clear(apps)
	}
	c.t.Errorf("world %d is given up after %d runs in a row that could not begin", w.Number, maxBroken)
}

// next takes a run, 0 when there is none left.
func (c *campaign) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken >= c.count {
		return 0
	}
	c.taken++
	return c.taken
}

func (c *campaign) succeed(w *World, o *Outcome, events []*Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes = append(c.outcomes, o)
	c.t.Logf("run %d in world %d: with help in %d cases, settled %.1f s after the last of:\n%s",
		o.Run, w.Number, o.Forgotten, o.Recovery.Seconds(), list(events))
}

// fail tells all that there is to know about a run that failed.
func (c *campaign) fail(ctx context.Context, w *World, run int, err error, events []*Event, apps []*App) {
	var state strings.Builder
	for _, a := range apps {
		if a != nil {
			state.WriteString(a.explain(context.WithoutCancel(ctx)))
		}
	}
	w.System.KeepLogs(fmt.Sprintf("-run-%d", run))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
	c.t.Errorf("FAILED: seed %d, run %d in world %d: %v\nits schedule:\n%s%s", c.plan.seed, run, w.Number, err, list(events), &state)
}

// Helped returns how often a person had to help, and Injected how many faults there were.
func (r *Result) Helped() (count int) {
	for _, o := range r.Outcomes {
		count += o.Forgotten
	}
	return count
}

// Injected returns the faults that hit something.
func (r *Result) Injected() (faults []*Event) {
	for _, o := range r.Outcomes {
		faults = append(faults, o.Faults...)
	}
	return faults
}

// Table has a row with the recovery times of the runs with each kind of fault, in which a run counts once. The first two are those
// without and those with faults.
func (r *Result) Table() string {
	times := map[string][]time.Duration{}
	for _, o := range r.Outcomes {
		kinds := []string{"none"}
		for _, e := range o.Faults {
			kinds = append(kinds, "any", e.What)
		}
		if len(o.Faults) > 0 {
			kinds = kinds[1:]
		}
		slices.Sort(kinds)
		for _, kind := range slices.Compact(kinds) {
			times[kind] = append(times[kind], o.Recovery)
		}
	}
	var table strings.Builder
	for _, kind := range tableOrder(times) {
		of := slices.Sorted(slices.Values(times[kind]))
		fmt.Fprintf(&table, "| %s | %d | %.1f s | %.1f s |\n", kind, len(of), of[len(of)/2].Seconds(), of[len(of)-1].Seconds())
	}
	return table.String()
}

func tableOrder(times map[string][]time.Duration) []string {
	first := []string{"none", "any"}
	isFirst := func(kind string) bool { return slices.Contains(first, kind) }
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(times)), isFirst)
	return slices.DeleteFunc(append(first, rest...), func(kind string) bool { return times[kind] == nil })
}
