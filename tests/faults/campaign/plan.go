package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	// span is the time in which the changes and the faults of a run happen.
	span = 3 * time.Second
	// rareEvery is one of how many runs has a rare kind of fault.
	rareEvery = 200
)

// Heal ends a fault. It is nil when the fault ends by itself.
type Heal = func(context.Context) error

// Fault is a kind of fault.
type Fault struct {
	Kind string
	// Holds names what the fault needs for itself: two that name the same thing come one after another, all others at any time.
	Holds []string
	// Shortest and Longest are how long it lasts before it is healed.
	Shortest, Longest time.Duration
	// Short takes it into the short form.
	Short bool
	// Rare is for one that takes minutes: only one run of rareEvery has it, unless it is asked for by name.
	Rare bool
	// Inject makes the fault.
	Inject func(ctx context.Context, on *Target) (Heal, error)
}

// Event is something that happens in a run.
type Event struct {
	At    time.Duration // since the beginning of the run
	What  string
	Fault *Fault
	Lasts time.Duration // of a fault
	// Phase is that of an operation that a fault is to hit, if the plan has phases; Victim is the Stack that it hit.
	Phase, Victim string
	Stack         int // of a change
	do            Change
	seed          uint64 // of the choices that it makes

	missed bool // is set when a fault had nothing to hit
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

// Plan is what the schedules of all runs follow from.
type Plan struct {
	// Stacks is how many each run has.
	Stacks int
	// Changes are what happens to them, by how often.
	Changes []Change
	// Phases are those of an operation, of which a fault hits one; none when faults come at any moment.
	Phases []string
	// Calm leaves the first run without a fault.
	Calm bool

	seed   uint64
	wanted []Fault // kinds
	rare   []Fault // kinds that one run of rareEvery has
	order  []int   // of the wanted kinds, over the runs
}

// choose takes kinds of faults. Rare ones are taken for all others when byName says that just these kinds were asked for.
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

// schedule is all that a run does, in order of time. It depends on nothing but the plan and the number of the run, from 1.
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

// faults are those of a run: every kind in its turn, and in one run of two another one with it.
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
		return chosen[:1] // one after the other they would take longer than anybody waits
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
