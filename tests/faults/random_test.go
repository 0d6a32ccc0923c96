package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// shortRuns is how many runs the short form has: one for each kind that is in it, after one without faults.
	shortRuns = 13
	// maxBroken is after how many runs in a row that could not even begin a world is given up.
	maxBroken = 3
)

// campaign is all runs of a test, which several worlds take from one counter.
type campaign struct {
	t     *testing.T
	plan  *plan
	count int
	began time.Time

	mu       sync.Mutex
	taken    int
	failed   int
	outcomes []*outcome
}

func TestRandomFaults(t *testing.T) {
	wanted := slices.DeleteFunc(catalogue(), func(f fault) bool {
		return *runs == 0 && *kinds == "" && !f.short || *kinds != "" && !slices.Contains(strings.Split(*kinds, ","), f.kind)
	})
	if len(wanted) == 0 {
		t.Fatalf("there is no kind of fault %q", *kinds)
	}
	c := &campaign{t: t, count: *runs, began: time.Now(), plan: newPlan(*seed, manyStacks, wanted, *kinds != "")}
	if c.count == 0 {
		c.count, c.plan.stacks = shortRuns, fewStacks
	}
	if *only > 0 {
		c.taken, c.count = *only-1, *only
	}
	t.Logf("seed %d, %d runs in %d worlds", *seed, c.count, len(worlds))
	var playing sync.WaitGroup
	for _, s := range worlds {
		playing.Go(func() { c.playIn(t.Context(), s) })
	}
	playing.Wait()
	c.finish()
}

// playIn plays runs in a world until there are none left, or until the world is beyond repair.
func (c *campaign) playIn(ctx context.Context, s *scene) {
	apps := make([]*app, c.plan.stacks)
	for broken := 0; broken < maxBroken; {
		run := c.next()
		if run == 0 {
			return
		}
		events := c.plan.schedule(run)
		begun := false
		err := s.renew(ctx, apps, fmt.Sprintf("f%d", run))
		var o *outcome
		if err == nil {
			begun, broken = true, 0
			o, err = s.play(ctx, run, apps, events)
		}
		if err == nil {
			c.succeed(s, o, events)
			continue
		}
		if !begun {
			broken++
			err = fmt.Errorf("deploy: %w", err)
		}
		c.fail(ctx, s, run, err, events, apps)
		s.abandon(apps)
		clear(apps)
	}
	c.t.Errorf("world %d is given up after %d runs in a row that could not begin", s.number, maxBroken)
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

func (c *campaign) succeed(s *scene, o *outcome, events []*event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes = append(c.outcomes, o)
	c.t.Logf("run %d in world %d: settled %.1f s after the last of:\n%s", o.run, s.number, o.recovery.Seconds(), list(events))
}

// fail tells all that there is to know about a run that failed.
func (c *campaign) fail(ctx context.Context, s *scene, run int, err error, events []*event, apps []*app) {
	var state strings.Builder
	for _, a := range apps {
		if a != nil {
			state.WriteString(a.explain(context.WithoutCancel(ctx)))
		}
	}
	s.keepLogs(fmt.Sprintf("-run-%d", run))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
	c.t.Errorf("FAILED: seed %d, run %d in world %d: %v\nits schedule:\n%s%s", c.plan.seed, run, s.number, err, list(events), &state)
}

// finish tells the sum, and writes the report when asked to.
func (c *campaign) finish() {
	checked := 0
	for _, s := range worlds {
		of, problems := s.watcher.take()
		checked += of
		if problems != nil {
			c.t.Errorf("statuses in world %d contradict themselves: %v", s.number, problems)
		}
	}
	took := time.Since(c.began)
	c.t.Logf("seed %d: %d of %d runs are fine, in %s; %d statuses were checked", c.plan.seed, len(c.outcomes), c.count,
		took.Round(time.Second), checked)
	if *only == 0 && len(c.outcomes)+c.failed < c.count {
		c.t.Errorf("only %d of %d runs were played", len(c.outcomes)+c.failed, c.count)
	}
	if *reportPath == "" {
		return
	}
	report := figures{
		runs: c.count, seed: c.plan.seed, stacks: c.plan.stacks, worlds: len(worlds), checked: checked, took: took, outcomes: c.outcomes,
	}
	if err := report.write(*reportPath); err != nil {
		c.t.Error(err)
	}
}
