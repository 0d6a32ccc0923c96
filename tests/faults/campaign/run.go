package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Outcome is what came of a run.
type Outcome struct {
	Run       int
	Faults    []*Event
	Recovery  time.Duration // from the last change, and the end of the last fault, until all was settled
	Forgotten int           // how often a person had to help
}

// play does what the schedule says, waits until all is settled and judges.
func (w *World) play(ctx context.Context, run int, apps []*App, events []*Event) (*Outcome, error) {
	o := &Outcome{Run: run}
	helped := helps(apps)
	if err := w.happenings(ctx, apps, events); err != nil {
		return o, err
	}
	since := time.Now()
	if err := w.Settle(ctx, apps); err != nil {
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

// happenings makes everything happen in its time and waits for the end of it. Two faults may want the same process: one ends
// before the other one begins. Changes of one Stack are made one by one.
func (w *World) happenings(ctx context.Context, apps []*App, events []*Event) error {
	var running sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	start := time.Now()
	lanes := map[int][]*Event{}
	for i, e := range events {
		lane := e.Stack
		if e.Fault != nil {
			lane = -1 - i // of its own
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

func (w *World) happen(ctx context.Context, apps []*App, e *Event) error {
	random := rand.New(rand.NewPCG(e.seed, 0))
	if e.Fault == nil {
		a := apps[e.Stack]
		if a.IsDeleted() {
			return nil
		}
		return a.Tolerate(e.do.make(a, ctx, random))
	}
	defer w.holds.hold(e.Fault.Holds)()
	on := &Target{World: w, Apps: apps, Event: e, Random: random}
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

// Renew deploys a Stack wherever there is none, and waits until all are settled.
func (w *World) Renew(ctx context.Context, apps []*App, prefix string) error {
	if err := w.System.Prepare(ctx, apps); err != nil {
		return err
	}
	for i, a := range apps {
		if a != nil && !a.IsDeleted() {
			continue
		}
		var err error
		if apps[i], err = w.deploy(ctx, fmt.Sprintf("%s-%d", prefix, i), i%gatedEvery == 1); err != nil {
			return err
		}
	}
	return w.Settle(ctx, apps)
}
