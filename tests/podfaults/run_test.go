package podfaults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

const (
	// stacks is how many Stacks a run has.
	stacks = 3
	// shortRuns is how many runs the short form has.
	shortRuns = 3
	// span is the time in which the changes of a run happen.
	span = 3 * time.Second
)

// event is something that happens in a run.
type event struct {
	at   time.Duration // since the beginning of the run
	what string
	seed uint64 // of the choices that it makes

	stack int // of a change
	do    change

	fault *fault
	lasts time.Duration // of a fault
	when  phase         // of a fault: the phase of an operation that it is for

	hit    string // the app that the fault hit
	missed bool   // the fault had nothing to hit
}

func (e *event) String() string {
	switch {
	case e.fault == nil:
		return fmt.Sprintf("%s: Stack %d: %s", e.at, e.stack, e.what)
	case e.missed:
		return fmt.Sprintf("%s: fault: %s, which had nothing to hit", e.at, e.what)
	}
	return fmt.Sprintf("%s: fault: %s, for %s, operation %s of %s", e.at, e.what, e.lasts, e.when, e.hit)
}

// schedule is all that a run does, in order of time. It depends on nothing but its arguments. Every second run with faults has a
// pair of them.
func schedule(seed uint64, run int, first *fault, others []fault) []*event {
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
	var faults []*fault
	if first != nil {
		faults = append(faults, first)
		if run%2 == 0 {
			faults = append(faults, &others[random.IntN(len(others))])
		}
	}
	for _, f := range faults {
		lasts := f.shortest
		if f.longest > f.shortest {
			lasts += moment(f.longest - f.shortest)
		}
		events = append(events, &event{
			at: moment(span), what: f.kind, fault: f, lasts: lasts, when: phases[random.IntN(len(phases))], seed: random.Uint64(),
		})
	}
	slices.SortStableFunc(events, func(a, b *event) int { return int(a.at - b.at) })
	return events
}

// outcome is what came of a run.
type outcome struct {
	faults    []*event
	recovery  time.Duration // from the last change, and the end of the last fault, until all was settled
	forgotten int           // how often a person had to help
	checked   int           // statuses
}

// play does what the schedule says, waits until all is settled and judges.
func (s *scene) play(ctx context.Context, apps []*app, events []*event) (*outcome, error) {
	o := &outcome{}
	helped := helps(apps)
	if err := s.watch(ctx, apps); err != nil {
		return o, err
	}
	var group errgroup.Group
	start := time.Now()
	// Changes of one Stack are made one by one; faults may overlap.
	lanes := map[string][]*event{}
	for i, e := range events {
		lane := fmt.Sprint("stack ", e.stack)
		if e.fault != nil {
			lane = fmt.Sprint("fault ", i)
		}
		lanes[lane] = append(lanes[lane], e)
	}
	var mu sync.Mutex
	var problems []error
	for _, lane := range lanes {
		group.Go(func() error {
			for _, e := range lane {
				wait(ctx, time.Until(start.Add(e.at)))
				if err := s.happen(ctx, apps, e); err != nil {
					mu.Lock()
					problems = append(problems, fmt.Errorf("%s: %w", e, err))
					mu.Unlock()
				}
			}
			return nil
		})
	}
	_ = group.Wait() // problems has the errors
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
			o.faults = append(o.faults, e)
		}
	}
	o.forgotten = helps(apps) - helped
	var err error
	o.checked, err = s.judge(apps)
	return o, err
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
	on.victim, e.when = on.chase(ctx, e.when)
	e.hit = on.victim.Name
	heal, err := e.fault.inject(ctx, on)
	if err == nil {
		wait(ctx, e.lasts)
	}
	if heal != nil {
		healing, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err = errors.Join(err, heal(healing))
	}
	e.missed = on.missed
	return err
}

func TestRandomFaults(t *testing.T) {
	wanted := slices.DeleteFunc(catalogue(), func(f fault) bool {
		return *runs == 0 && f.slow || *kinds != "" && !slices.Contains(strings.Split(*kinds, ","), f.kind)
	})
	count := *runs
	if count == 0 {
		count = shortRuns
	}
	t.Logf("seed %d, %d runs", *seed, count)
	order := rand.New(rand.NewPCG(*seed, 0)).Perm(len(wanted))
	var outcomes []*outcome
	apps := make([]*app, stacks)
	for run := 1; run <= count; run++ {
		if err := world.renew(t.Context(), apps, fmt.Sprintf("f%d", run)); err != nil {
			t.Fatalf("run %d: deploy: %v", run, err)
		}
		events := schedule(*seed, run, &wanted[order[(run-1)%len(order)]], wanted)
		o, err := world.play(t.Context(), apps, events)
		if err != nil {
			t.Errorf("seed %d, run %d: %v\nits schedule:\n%s", *seed, run, err, list(events))
			world.explain(t, apps)
			clear(apps) // they are left alone
			continue
		}
		t.Logf("run %d: with help in %d cases, settled %.1f s after the last of:\n%s",
			run, o.forgotten, o.recovery.Seconds(), list(events))
		outcomes = append(outcomes, o)
	}
	worked := world.observer.worked()
	t.Logf("%d of %d runs are fine; pulumi was seen to work %d times", len(outcomes), count, worked)
	if worked == 0 {
		t.Error("pulumi was never seen to work: that it never did so twice at once means nothing")
	}
	if *reportPath != "" {
		if err := writeReport(*reportPath, count, outcomes); err != nil {
			t.Error(err)
		}
	}
}

// explain logs how the apps stand.
func (s *scene) explain(t *testing.T, apps []*app) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, a := range apps {
		a.mu.Lock()
		t.Logf("%s, wanted %v, deleted %t, kills %d, forgotten %d", a.Name, a.resources, a.deleted, a.kills, a.forgotten)
		a.mu.Unlock()
		objects, err := s.system.Cluster.Kubectl(ctx, "get", "stacks,updates,workspaces,statefulsets,pods", "--output=yaml", "--namespace="+a.Namespace)
		t.Logf("%v\n%s\n%s", err, objects, s.system.Explain(ctx, a.App))
	}
	s.keepLogs(ctx)
}

// keepLogs writes the whole logs to where a developer finds them, when asked to.
func (s *scene) keepLogs(ctx context.Context) {
	dir := os.Getenv("FAULTS_LOGS")
	if dir == "" {
		return
	}
	for _, args := range [][]string{{}, {"--previous"}} {
		log, err := s.system.Cluster.Kubectl(ctx, append(args, "logs", "deployment/"+podstage.ControllerName,
			"--namespace="+cluster.FluxNamespace, "--tail=-1")...)
		if err == nil {
			name := fmt.Sprintf("controller-%s%s.log", time.Now().Format("150405"), strings.Join(args, ""))
			_ = os.WriteFile(filepath.Join(dir, name), []byte(log), 0o600)
		}
	}
}

// renew deploys a Stack wherever there is none, and waits until all are settled.
func (s *scene) renew(ctx context.Context, apps []*app, prefix string) error {
	var left []*app
	for i, a := range apps {
		if a != nil && !a.deleted {
			left = append(left, a)
			continue
		}
		if a != nil {
			if err := s.dismiss(ctx, a); err != nil {
				return err
			}
		}
		var err error
		if apps[i], err = s.deploy(ctx, fmt.Sprintf("%s-%d", prefix, i)); err != nil {
			return err
		}
	}
	if err := s.calm(ctx, left); err != nil {
		return err
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
