package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// manyStacks is how many Stacks a run has, and fewStacks in the short form.
	manyStacks = 4
	fewStacks  = 3
	// shortRuns is how many runs the short form has.
	shortRuns = 10
	// span is the time in which the changes and the faults of a run happen.
	span = 3 * time.Second
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

// schedule is all that a run does, in order of time. It depends on nothing but its arguments.
func schedule(seed uint64, run, stacks int, first *fault, others []fault) []*event {
	random := rand.New(rand.NewPCG(seed, uint64(run)))
	moment := func(within time.Duration) time.Duration {
		return time.Duration(random.Int64N(int64(within/time.Millisecond))) * time.Millisecond
	}
	var events []*event
	for stack := range stacks {
		for range 1 + random.IntN(2) {
			do := changes[random.IntN(len(changes))]
			events = append(events, &event{at: moment(span), what: do.name, stack: stack, do: do, seed: random.Uint64()})
		}
	}
	faults := []*fault{}
	if first != nil {
		faults = append(faults, first)
		if random.IntN(3) == 0 {
			faults = append(faults, &others[random.IntN(len(others))])
		}
	}
	for _, f := range faults {
		lasts := f.shortest
		if f.longest > f.shortest {
			lasts += moment(f.longest - f.shortest)
		}
		events = append(events, &event{at: moment(span + time.Second), what: f.kind, fault: f, lasts: lasts, seed: random.Uint64()})
	}
	slices.SortStableFunc(events, func(a, b *event) int { return int(a.at - b.at) })
	return events
}

// outcome is what came of a run.
type outcome struct {
	faults    []string
	recovery  time.Duration // from the last change, and the end of the last fault, until all was settled
	forgotten int           // how often a person had to help
}

// play does what the schedule says, waits until all is settled and judges.
func (s *scene) play(ctx context.Context, apps []*app, events []*event) (*outcome, error) {
	o := &outcome{}
	helped := helps(apps)
	var running sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	start := time.Now()
	// Two faults may want the same process: one ends before the next one begins. Changes of one Stack are made one by one.
	lanes := map[string][]*event{}
	for _, e := range events {
		lane := fmt.Sprint("stack ", e.stack)
		if e.fault != nil {
			lane = "faults"
		}
		lanes[lane] = append(lanes[lane], e)
	}
	for _, lane := range lanes {
		running.Go(func() {
			for _, e := range lane {
				wait(ctx, time.Until(start.Add(e.at)))
				if err := s.happen(ctx, apps, e); err != nil {
					mu.Lock()
					problems = append(problems, fmt.Errorf("%s: %w", e, err))
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	if len(problems) > 0 {
		return o, errors.Join(problems...)
	}
	since := time.Now()
	if err := s.settle(ctx, apps); err != nil {
		return o, err
	}
	o.recovery = time.Since(since)
	for _, e := range events {
		if e.fault != nil && !e.missed {
			o.faults = append(o.faults, e.what)
		}
	}
	o.forgotten = helps(apps) - helped
	return o, s.judge(apps)
}

func helps(apps []*app) int {
	count := 0
	for _, a := range apps {
		a.mu.Lock()
		count += a.forgotten
		a.mu.Unlock()
	}
	return count
}

func (s *scene) happen(ctx context.Context, apps []*app, e *event) error {
	random := rand.New(rand.NewPCG(e.seed, 0))
	if e.fault == nil {
		a := apps[e.stack]
		if a.deleted {
			return nil
		}
		return e.do.make(a, ctx, random)
	}
	on := &target{scene: s, apps: apps, random: random}
	heal, err := e.fault.inject(ctx, on)
	if err == nil {
		wait(ctx, e.lasts)
	}
	if heal != nil {
		err = errors.Join(err, heal(ctx))
	}
	e.missed = e.fault.mayMiss && !on.hit
	return err
}

func TestRandomFaults(t *testing.T) {
	wanted := slices.DeleteFunc(catalogue(), func(f fault) bool {
		return *runs == 0 && f.slow || f.onlyByName && *kinds == "" || *kinds != "" && !slices.Contains(strings.Split(*kinds, ","), f.kind)
	})
	count, stacks := *runs, manyStacks
	if count == 0 {
		count, stacks = shortRuns, fewStacks
	}
	t.Logf("seed %d, %d runs", *seed, count)
	order := rand.New(rand.NewPCG(*seed, 0)).Perm(len(wanted))
	var outcomes []*outcome
	apps := make([]*app, stacks)
	for run := 1; run <= count; run++ {
		if err := world.renew(t.Context(), apps, fmt.Sprintf("f%d", run)); err != nil {
			t.Fatalf("run %d: deploy: %v", run, err)
		}
		var first *fault
		if run > 1 || *kinds != "" { // the first run shows what it is like without faults
			first = &wanted[order[(run-1)%len(order)]]
		}
		events := schedule(*seed, run, stacks, first, wanted)
		o, err := world.play(t.Context(), apps, events)
		if err != nil {
			t.Errorf("seed %d, run %d: %v\nits schedule:\n%s", *seed, run, err, list(events))
			for _, a := range apps {
				t.Logf("%s, wanted %v, deleted %t, kills %d, forgotten %d:\n%s", a.Name, a.resources, a.deleted, a.kills, a.forgotten,
					world.system.Explain(context.WithoutCancel(t.Context()), a.App))
			}
			clear(apps) // they are left alone
			continue
		}
		t.Logf("run %d: settled %.1f s after the last of:\n%s", run, o.recovery.Seconds(), list(events))
		outcomes = append(outcomes, o)
	}
	checked, _ := world.watcher.take()
	t.Logf("%d of %d runs are fine; %d statuses were checked", len(outcomes), count, checked)
	if *reportPath != "" {
		if err := writeReport(*reportPath, count, checked, outcomes); err != nil {
			t.Error(err)
		}
	}
}

// renew deploys a Stack wherever there is none, and waits until all are settled.
func (s *scene) renew(ctx context.Context, apps []*app, prefix string) error {
	for i, a := range apps {
		if a != nil && !a.deleted {
			continue
		}
		var err error
		if apps[i], err = s.deploy(ctx, fmt.Sprintf("%s-%d", prefix, i)); err != nil {
			return err
		}
	}
	return s.settle(ctx, apps)
}

func list(events []*event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintln(&text, "  "+e.String())
	}
	return text.String()
}
