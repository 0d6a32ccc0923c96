package campaign

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// maxBroken is how many runs in a row may fail before they begin; then the environment is given up.
const maxBroken = 3

// Options are the flags of a test.
type Options struct {
	// Runs is the number of runs, 0 for the short form.
	Runs   int
	Seed   uint64
	Kinds  string
	Only   int
	List   bool
	Report string
}

// BindFlags adds the flags.
func (o *Options) BindFlags(flags *flag.FlagSet) {
	flags.IntVar(&o.Runs, "runs", 0, "how many runs with random faults; 0 is the short form, of some kinds that heal quickly")
	flags.Uint64Var(&o.Seed, "seed", 1, "what the schedules of the runs follow from")
	flags.StringVar(&o.Kinds, "kinds", "", "comma-separated kinds of faults to take; empty means all")
	flags.IntVar(&o.Only, "only", 0, "the number of the only run to play; 0 means all")
	flags.BoolVar(&o.List, "list", false, "print all kinds of faults, and do nothing else")
	flags.StringVar(&o.Report, "report", "", "the file to write the figures to")
}

// Result is the result of all runs.
type Result struct {
	Runs     int // that were requested
	Checked  int // statuses
	Planned  int // statuses of Updates that carried out an approved plan
	Took     time.Duration
	Outcomes []*Outcome // of the runs that were fine
}

// campaign is all runs of a test. Several environments take the runs from one counter.
type campaign struct {
	t     *testing.T
	plan  *Plan
	count int

	mu       sync.Mutex
	taken    int
	failed   int
	outcomes []*Outcome
}

// Play plays runs with faults of the catalogue in the environments, and returns the result. The short form has shortRuns runs.
func (o *Options) Play(t *testing.T, environments []*Environment, catalogue []Fault, plan *Plan, shortRuns int) *Result {
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
	t.Logf("seed %d, %d runs in %d environments", o.Seed, c.count, len(environments))
	var playing sync.WaitGroup
	for _, w := range environments {
		playing.Go(func() { c.playIn(t.Context(), w) })
	}
	playing.Wait()
	result := &Result{Runs: c.count, Took: time.Since(began), Outcomes: c.outcomes}
	for _, w := range environments {
		checked, problems := w.Problems()
		result.Checked += checked
		result.Planned += w.gate.planned()
		if problems != nil {
			t.Errorf("statuses in environment %d contradict themselves: %v", w.Number, problems)
		}
	}
	t.Logf("seed %d: %d of %d runs are fine, in %s; %d statuses were checked, %d of updates that carried out a plan", o.Seed, len(c.outcomes), c.count,
		result.Took.Round(time.Second), result.Checked, result.Planned)
	if o.Only == 0 && len(c.outcomes)+c.failed < c.count {
		t.Errorf("only %d of %d runs were played", len(c.outcomes)+c.failed, c.count)
	}
	return result
}

// playIn plays runs in a environment until there are none left, or until maxBroken runs in a row could not begin.
func (c *campaign) playIn(ctx context.Context, w *Environment) {
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
	c.t.Errorf("environment %d is given up after %d runs in a row that could not begin", w.Number, maxBroken)
}

// next returns the number of the next run, or 0 when there is none left.
func (c *campaign) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken >= c.count {
		return 0
	}
	c.taken++
	return c.taken
}

func (c *campaign) succeed(w *Environment, o *Outcome, events []*Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes = append(c.outcomes, o)
	c.t.Logf("run %d in environment %d: with help in %d cases, converged %.1f s after the last of:\n%s",
		o.Run, w.Number, o.Forgotten, o.Recovery.Seconds(), list(events))
}

// fail reports everything that is known about a failed run.
func (c *campaign) fail(ctx context.Context, w *Environment, run int, err error, events []*Event, apps []*App) {
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
	c.t.Errorf("FAILED: seed %d, run %d in environment %d: %v\nits schedule:\n%s%s", c.plan.seed, run, w.Number, err, list(events), &state)
}

// Helped returns how often the test had to help as a person would.
func (r *Result) Helped() (count int) {
	for _, o := range r.Outcomes {
		count += o.Forgotten
	}
	return count
}

// Injected returns the faults that had something to hit.
func (r *Result) Injected() (faults []*Event) {
	for _, o := range r.Outcomes {
		faults = append(faults, o.Faults...)
	}
	return faults
}

// Table returns a table with one row for each kind of fault: the number of runs with that kind, and their median and longest recovery time.
// A run counts once in each row. The first two rows are for the runs without and with faults.
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

const (
	// span is the time in which the changes and the faults of a run happen.
	span = 3 * time.Second
	// rareEvery is the number of runs of which one has a rare kind of fault.
	rareEvery = 200
)

// Heal ends a fault. Nil means that the fault ends by itself.
type Heal = func(context.Context) error

// Fault is a kind of fault.
type Fault struct {
	Kind string
	// Holds names what the fault needs for itself. Faults that name the same thing happen one after the other; all other faults may
	// overlap.
	Holds []string
	// Shortest and Longest are how long it lasts before it is healed.
	Shortest, Longest time.Duration
	// Short includes the fault in the short form.
	Short bool
	// Rare marks a fault that takes minutes. Only one of rareEvery runs has such a fault, unless the kind is requested by name.
	Rare bool
	// Inject starts the fault.
	Inject func(ctx context.Context, on *Target) (Heal, error)
}

// Event is something that happens in a run.
type Event struct {
	At    time.Duration // since the beginning of the run
	What  string
	Fault *Fault
	Lasts time.Duration // of a fault
	// Phase is the phase of an operation that a fault is to hit, if the plan has phases. Victim is the Stack that the fault hit.
	Phase, Victim string
	Stack         int // of a change
	do            Change
	seed          uint64 // of the event's random choices

	missed bool // whether a fault had nothing to hit
}

func (e *Event) String() string {
	if e.Fault == nil {
		return fmt.Sprintf("%s: Stack %d: %s", e.At, e.Stack, e.What)
	}
	text := fmt.Sprintf("%s: fault: %s, for %s", e.At, e.What, e.Lasts)
	if e.Victim != "" {
		text += fmt.Sprintf(", operation %s of %s", e.Phase, e.Victim)
	}
	if e.missed {
		text += ", which had nothing to hit"
	}
	return text
}

// Plan determines the schedules of all runs.
type Plan struct {
	// Stacks is the number of Stacks of each run.
	Stacks int
	// Changes are the changes that can happen to the Stacks. A change that is listed twice happens twice as often.
	Changes []Change
	// Phases are the phases of an operation, one of which a fault hits. Without phases, faults happen at any moment.
	Phases []string
	// Calm keeps the first run free of faults.
	Calm bool

	seed   uint64
	wanted []Fault // kinds
	rare   []Fault // kinds, of which one of rareEvery runs has one
	order  []int   // of the wanted kinds over the runs
}

// choose sets the seed and the kinds of faults. byName means that exactly these kinds were requested, so that rare kinds are as frequent as
// others.
func (p *Plan) choose(seed uint64, kinds []Fault, byName bool) {
	p.seed, p.Calm = seed, p.Calm && !byName
	for _, f := range kinds {
		if f.Rare && !byName {
			p.rare = append(p.rare, f)
		} else {
			p.wanted = append(p.wanted, f)
		}
	}
	p.order = rand.New(rand.NewPCG(seed, 0)).Perm(len(p.wanted))
}

// schedule returns the events of a run, in order of time. They depend only on the plan and on the number of the run, which counts from 1.
func (p *Plan) schedule(run int) []*Event {
	random := rand.New(rand.NewPCG(p.seed, uint64(run)))
	moment := func(within time.Duration) time.Duration {
		return time.Duration(random.Int64N(int64(within/time.Millisecond))) * time.Millisecond
	}
	var events []*Event
	for stack := range p.Stacks {
		for range 1 + random.IntN(2) {
			do := p.Changes[random.IntN(len(p.Changes))]
			events = append(events, &Event{At: moment(span), What: do.Name, Stack: stack, do: do, seed: random.Uint64()})
		}
	}
	for _, f := range p.faults(run, random) {
		e := &Event{What: f.Kind, Fault: f, Lasts: f.Shortest}
		if f.Longest > f.Shortest {
			e.Lasts += moment(f.Longest - f.Shortest)
		}
		e.At, e.seed = moment(span+time.Second), random.Uint64()
		if len(p.Phases) > 0 {
			e.Phase = p.Phases[random.IntN(len(p.Phases))]
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b *Event) int { return int(a.At - b.At) })
	return events
}

// faults returns the faults of a run: each run has the next kind in order, and half of the runs have another, random one.
func (p *Plan) faults(run int, random *rand.Rand) []*Fault {
	switch {
	case p.Calm && run == 1:
		return nil
	case len(p.rare) > 0 && run%rareEvery == rareEvery/4:
		return []*Fault{&p.rare[run/rareEvery%len(p.rare)]}
	}
	chosen := []*Fault{&p.wanted[p.order[(run-1)%len(p.order)]]}
	if random.IntN(2) == 0 {
		chosen = append(chosen, &p.wanted[random.IntN(len(p.wanted))])
	}
	if len(chosen) == 2 && chosen[0].Rare && chosen[1].Rare {
		return chosen[:1] // two rare faults in a row would take too long
	}
	return chosen
}

func list(events []*Event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintln(&text, "  "+e.String())
	}
	return text.String()
}

// Outcome is the result of a run.
type Outcome struct {
	Run       int
	Faults    []*Event
	Recovery  time.Duration // from the last change, or the end of the last fault if that was later, until everything had converged
	Forgotten int           // how often the test had to help as a person would
}

// play carries out the schedule, waits until everything has converged, and checks the result.
func (w *Environment) play(ctx context.Context, run int, apps []*App, events []*Event) (*Outcome, error) {
	o := &Outcome{Run: run}
	helped := helps(apps)
	if err := w.happenings(ctx, apps, events); err != nil {
		return o, err
	}
	since := time.Now()
	if err := w.AwaitConvergence(ctx, apps); err != nil {
		return o, err
	}
	o.Recovery = time.Since(since)
	for _, e := range events {
		if e.Fault != nil && !e.missed {
			o.Faults = append(o.Faults, e)
		}
	}
	o.Forgotten = helps(apps) - helped
	return o, w.Audit(apps)
}

// happenings makes every event happen at its time, and waits until all have ended. Changes of one Stack are made one after the other.
// Faults that need the same thing happen one after the other.
func (w *Environment) happenings(ctx context.Context, apps []*App, events []*Event) error {
	var running sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	start := time.Now()
	lanes := map[int][]*Event{}
	for i, e := range events {
		lane := e.Stack
		if e.Fault != nil {
			lane = -1 - i // each fault has its own lane
		}
		lanes[lane] = append(lanes[lane], e)
	}
	for _, lane := range lanes {
		running.Go(func() {
			for _, e := range lane {
				Wait(ctx, time.Until(start.Add(e.At)))
				if err := w.happen(ctx, apps, e); err != nil {
					mu.Lock()
					problems = append(problems, fmt.Errorf("%s: %w", e, err))
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	return errors.Join(problems...)
}

func helps(apps []*App) (count int) {
	for _, a := range apps {
		a.note(func() { count += a.forgotten })
	}
	return count
}

func (w *Environment) happen(ctx context.Context, apps []*App, e *Event) error {
	random := rand.New(rand.NewPCG(e.seed, 0))
	if e.Fault == nil {
		a := apps[e.Stack]
		if a.IsDeleted() {
			return nil
		}
		return a.Tolerate(e.do.make(a, ctx, random))
	}
	defer w.holds.hold(e.Fault.Holds)()
	on := &Target{Environment: w, Apps: apps, Event: e, Random: random}
	heal, err := e.Fault.Inject(ctx, on)
	if err == nil {
		Wait(ctx, e.Lasts)
	}
	if heal != nil {
		err = errors.Join(err, heal(ctx))
	}
	e.missed = on.Missed
	return err
}

// Renew deploys the missing Stacks, and waits until all Stacks have converged.
func (w *Environment) Renew(ctx context.Context, apps []*App, prefix string) error {
	if err := w.System.Prepare(ctx, apps); err != nil {
		return err
	}
	for i, a := range apps {
		if a != nil && !a.IsDeleted() {
			continue
		}
		var err error
		if apps[i], err = w.deploy(ctx, fmt.Sprintf("%s-%d", prefix, i), i%gatedEvery == 1, tierOf(i)); err != nil {
			return err
		}
	}
	return w.AwaitConvergence(ctx, apps)
}
