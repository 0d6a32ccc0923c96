package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// outcome is what came of a run.
type outcome struct {
	run       int
	faults    []string
	recovery  time.Duration // from the last change, and the end of the last fault, until all was settled
	forgotten int           // how often a person had to help
}

// play does what the schedule says, waits until all is settled and judges.
func (s *scene) play(ctx context.Context, run int, apps []*app, events []*event) (*outcome, error) {
	o := &outcome{run: run}
	helped := helps(apps)
	if err := s.happenings(ctx, apps, events); err != nil {
		return o, err
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

// happenings makes everything happen in its time and waits for the end of it. Two faults may want the same process: one ends
// before the other one begins. Changes of one Stack are made one by one.
func (s *scene) happenings(ctx context.Context, apps []*app, events []*event) error {
	var running sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	start := time.Now()
	lanes := map[int][]*event{}
	for i, e := range events {
		lane := e.stack
		if e.fault != nil {
			lane = -1 - i // of its own
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
	return errors.Join(problems...)
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
		if a.isDeleted() {
			return nil
		}
		return a.tolerate(e.do.make(a, ctx, random))
	}
	defer s.hold(e.fault.holds)()
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

// renew deploys a Stack wherever there is none, and waits until all are settled.
func (s *scene) renew(ctx context.Context, apps []*app, prefix string) error {
	for i, a := range apps {
		if a != nil && !a.isDeleted() {
			continue
		}
		var err error
		if apps[i], err = s.deploy(ctx, fmt.Sprintf("%s-%d", prefix, i)); err != nil {
			return err
		}
	}
	return s.settle(ctx, apps)
}
