package faults_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	// manyStacks is how many Stacks a run has, and fewStacks in the short form.
	manyStacks = 3
	fewStacks  = 3
	// span is the time in which the changes and the faults of a run happen.
	span = 3 * time.Second
	// rareEvery is one of how many runs has a rare kind of fault.
	rareEvery = 200
)

// event is something that happens in a run.
type event struct {
	at    time.Duration // since the beginning of the run
	what  string
	fault *fault
	lasts time.Duration // of a fault
	stack int           // of a change
	do    change
	seed  uint64 // of the choices that it makes

	missed bool // is set when a fault had nothing to hit
}

func (e *event) String() string {
	if e.fault != nil {
		text := fmt.Sprintf("%s: fault: %s, for %s", e.at, e.what, e.lasts)
		if e.missed {
			text += ", which had nothing to hit"
		}
		return text
	}
	return fmt.Sprintf("%s: Stack %d: %s", e.at, e.stack, e.what)
}

// plan is what the schedules of all runs follow from.
type plan struct {
	seed   uint64
	stacks int     // in each run
	wanted []fault // kinds
	rare   []fault // kinds that one run of rareEvery has
	order  []int   // of the wanted kinds, over the runs
	calm   bool    // the first run has no fault
}

// newPlan takes rare kinds for all others when byName tells that just these kinds were asked for.
func newPlan(seed uint64, stacks int, kinds []fault, byName bool) *plan {
	p := &plan{seed: seed, stacks: stacks, calm: !byName}
	for _, f := range kinds {
		if f.rare && !byName {
			p.rare = append(p.rare, f)
		} else {
			p.wanted = append(p.wanted, f)
		}
	}
	p.order = rand.New(rand.NewPCG(seed, 0)).Perm(len(p.wanted))
	return p
}

// schedule is all that a run does, in order of time. It depends on nothing but the plan and the number of the run, from 1.
func (p *plan) schedule(run int) []*event {
	random := rand.New(rand.NewPCG(p.seed, uint64(run)))
	moment := func(within time.Duration) time.Duration {
		return time.Duration(random.Int64N(int64(within/time.Millisecond))) * time.Millisecond
	}
	var events []*event
	for stack := range p.stacks {
		for range 1 + random.IntN(2) {
			do := changes[random.IntN(len(changes))]
			events = append(events, &event{at: moment(span), what: do.name, stack: stack, do: do, seed: random.Uint64()})
		}
	}
	for _, f := range p.faults(run, random) {
		lasts := f.shortest
		if f.longest > f.shortest {
			lasts += moment(f.longest - f.shortest)
		}
		events = append(events, &event{at: moment(span + time.Second), what: f.kind, fault: f, lasts: lasts, seed: random.Uint64()})
	}
	slices.SortStableFunc(events, func(a, b *event) int { return int(a.at - b.at) })
	return events
}

// faults are those of a run: every kind in its turn, and in one run of two another one with it.
func (p *plan) faults(run int, random *rand.Rand) []*fault {
	switch {
	case p.calm && run == 1:
		return nil
	case len(p.rare) > 0 && run%rareEvery == rareEvery/4:
		return []*fault{&p.rare[run/rareEvery%len(p.rare)]}
	}
	chosen := []*fault{&p.wanted[p.order[(run-1)%len(p.order)]]}
	if random.IntN(2) == 0 {
		chosen = append(chosen, &p.wanted[random.IntN(len(p.wanted))])
	}
	if len(chosen) == 2 && chosen[0].rare && chosen[1].rare {
		return chosen[:1] // one after the other they would take longer than anybody waits
	}
	return chosen
}

func list(events []*event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintln(&text, "  "+e.String())
	}
	return text.String()
}
