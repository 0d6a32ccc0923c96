package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// rolloutPatience bounds each wait for the Stack.
const rolloutPatience = 2 * time.Minute

// program is the program that both stack-controller and the bare pulumi run; each run changes its output.
func program(output string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: bench\nruntime: yaml\nvariables:\n  value: %s\noutputs:\n  value: ${value}\n", output)}
}

// benchRollouts measures the process runtime.
func benchRollouts(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "stack-bench-")
	if err != nil {
		return fmt.Errorf("create the directory of the calls: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pulumi, err := tools.Path(ctx, "pulumi", func(line string) { fmt.Fprintln(out, line) })
	if err != nil {
		return err
	}
	wrapped, calls, err := wrap(dir, pulumi)
	if err != nil {
		return err
	}
	system, err := localsystem.Start(ctx, localsystem.Options{Log: out, Pulumi: wrapped, ControllerArgs: []string{"--max-operations=0"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Stop()) }()

	app, err := system.Deploy(ctx, "bench", program("first"))
	if err != nil {
		return err
	}
	readyCtx, cancel := context.WithTimeout(ctx, rolloutPatience)
	defer cancel()
	if _, err := system.WaitReady(readyCtx, app); err != nil {
		return err
	}
	bare, err := system.NewBare(ctx, program("first"))
	if err != nil {
		return err
	}
	m, err := measureCommits(ctx, "run", s.runs, subject{apps: system.Apps, app: app, calls: calls, bare: bare.Up})
	if err != nil {
		return err
	}
	m.print(out, "one commit, workspaces as processes")
	return nil
}

// subject is a Stack that follows commits, and a function that runs a bare update of the same program and returns its duration.
type subject struct {
	apps  *localsystem.Apps
	app   *localsystem.App
	calls *callLog
	bare  func(context.Context, gitserver.Files) (time.Duration, error)
	// program returns the files of the program with an output, program if it is nil.
	program func(output string) gitserver.Files
}

// measurements holds the measured times, one entry per run.
type measurements struct {
	bare    measure.Samples
	rollout measure.Samples
	phases  []measure.Samples // one per name in phaseNames
	calls   int               // calls of the CLI, over all rollouts
}

// phaseNames names the phases of a rollout, in order.
var phaseNames = []string{
	"new artifact seen → Update created",
	"Update created → pulumi starts",
	"pulumi runs",
	"pulumi ends → Update has the result",
	"Update has the result → Stack succeeded",
}

// measureCommits runs commits and bare updates in turn, so that both run under the same conditions. The first run of each warms up. Each
// measurement of a Stack needs a name of its own: with the same name the content would be the same, and an earlier Update would be taken
// for the Update of the commit.
func measureCommits(ctx context.Context, name string, runs int, s subject) (*measurements, error) {
	warm := &measurements{phases: make([]measure.Samples, len(phaseNames))}
	m := &measurements{phases: make([]measure.Samples, len(phaseNames))}
	source := s.program
	if source == nil {
		source = program
	}
	for run := range runs + 1 {
		target := m
		if run == 0 {
			target = warm
		}
		files := source(fmt.Sprintf("%s-%d", name, run))
		duration, err := s.bare(ctx, files)
		if err != nil {
			return nil, err
		}
		target.bare = append(target.bare, duration)
		if err := target.rollOut(ctx, s, files); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *measurements) rollOut(ctx context.Context, s subject, files gitserver.Files) error {
	ctx, cancel := context.WithTimeout(ctx, rolloutPatience)
	defer cancel()
	if err := s.calls.reset(); err != nil {
		return err
	}
	r, err := s.apps.Rollout(ctx, s.app, files)
	if err != nil {
		return err
	}
	made, err := s.calls.read()
	if err != nil {
		return err
	}
	if len(made) == 0 {
		return fmt.Errorf("commit %s succeeded without a call of pulumi", r.SHA)
	}
	m.calls += len(made)
	m.rollout = append(m.rollout, r.Duration())
	steps := []time.Time{r.Artifact, r.UpdateCreated, made[0].start, made[len(made)-1].end, r.OperationEnded, r.Succeeded}
	for i := range m.phases {
		m.phases[i] = append(m.phases[i], steps[i+1].Sub(steps[i]))
	}
	return nil
}

// ratio returns the ratio of the medians, rollout to bare update.
func (m *measurements) ratio() float64 {
	return m.rollout.Median().Seconds() / m.bare.Median().Seconds()
}

func (m *measurements) print(out io.Writer, title string) {
	t := measure.NewTable(out, title, "median", "min", "max")
	t.Row("bare pulumi up", m.bare)
	t.Row("new artifact → Stack succeeded", m.rollout)
	for i, phase := range m.phases {
		t.Row("  "+phaseNames[i], phase)
	}
	t.Flush()
	fmt.Fprintf(out, "ratio of the medians: %.2f; calls of the pulumi CLI per update: %.1f; runs: %d\n",
		m.ratio(), float64(m.calls)/float64(len(m.rollout)), len(m.rollout))
}

const (
	// maxDriftRatio limits the time to check many Stacks for drift at once, divided by the ideal: the processor time of as many bare
	// previews of a refresh, divided by the number of processors. Such a preview is short, so the share of everything else is larger than
	// for an update.
	maxDriftRatio = 1.7
	// hourlyStacks is the number of Stacks for which the table shows the cost of hourly checks.
	hourlyStacks = 1000
)

// benchDrift measures how long it takes to check many Stacks for drift, and what one check costs.
func benchDrift(ctx context.Context, s settings, limits *measure.Limits, system *localsystem.System, bare *localsystem.Bare, namespace string, names []string, out io.Writer) error {
	var one, all measure.Samples
	for run := range min(s.runs, manyRuns) + 1 {
		cpu, err := bare.LookForDrift(ctx)
		if err != nil {
			return err
		}
		took, err := checkAll(ctx, system, namespace, names, "run-"+strconv.Itoa(run))
		if err != nil {
			return err
		}
		if run > 0 { // the first one warms up
			one, all = append(one, cpu), append(all, took)
		}
	}
	ideal := time.Duration(len(names)) * one.Median() / time.Duration(runtime.NumCPU())
	ratio := all.Median().Seconds() / ideal.Seconds()
	each := all.Median() * time.Duration(runtime.NumCPU()) / time.Duration(len(names))
	t := measure.NewTable(out, fmt.Sprintf("%d Stacks, checked for drift at once, workspaces as processes", len(names)), "median", "min", "max")
	t.Row("processor time of a bare pulumi refresh --preview-only", one)
	t.Row("request → last Stack checked", all)
	t.Flush()
	fmt.Fprintf(out, "at most %s of processor time for each check; %d Stacks, once per hour: %.0f %% of one processor; ratio: %.2f\n",
		measure.Seconds(each), hourlyStacks, 100*hourlyStacks*each.Hours(), ratio)
	limits.Check(fmt.Sprintf("checking %d Stacks for drift, beside the processor time of bare previews", len(names)), ratio, maxDriftRatio)
	return nil
}

// checkAll requests a drift check of all the Stacks, and returns the time until all were checked. It uses a watch, because polling would
// take a tenth of the processor time.
func checkAll(ctx context.Context, system *localsystem.System, namespace string, names []string, token string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	watcher, err := system.Client.Watch(ctx, &pulumiv1.StackList{}, client.InNamespace(namespace))
	if err != nil {
		return 0, fmt.Errorf("watch the Stacks: %w", err)
	}
	defer watcher.Stop()
	change := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"drift":{"interval":"24h"}}}`, pulumiv1.DriftCheckAnnotation, token)
	start := time.Now()
	for _, name := range names {
		stack := &pulumiv1.Stack{Namespace: namespace, Name: name}
		if err := system.Client.Patch(ctx, stack, client.RawPatch(types.MergePatchType, change)); err != nil {
			return 0, fmt.Errorf("ask for a check of Stack %s: %w", name, err)
		}
	}
	unchecked := sets.New(names...)
	for event := range watcher.ResultChan() {
		stack, isStack := event.Object.(*pulumiv1.Stack)
		if isStack && stack.Status.Drift != nil && stack.Status.Drift.LastHandledCheckAt == token {
			unchecked.Delete(stack.Name)
		}
		if unchecked.Len() == 0 {
			return time.Since(start), nil
		}
	}
	return 0, fmt.Errorf("wait until all Stacks are checked for drift: the watch ended, and %d are not", unchecked.Len())
}

const (
	// fleetPatience bounds a commit that all Stacks follow, and their first deployment.
	fleetPatience = 5 * time.Minute
	// maxFleetRatio limits the time that many Stacks take with one commit, divided by the ideal: the processor time of as many bare
	// updates, divided by the number of processors. The API server, which runs on the same processors, takes a fifth of the time of a bare
	// update.
	maxFleetRatio = 1.5
)

// benchFleet measures many Stacks that follow one commit, beside bare updates. There are more Stacks than operations may run at the same
// time. The agents call the CLI directly, without a wrapper.
func benchFleet(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	system, err := localsystem.Start(ctx, localsystem.Options{Log: out, ControllerArgs: []string{"--max-operations=0"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Stop()) }()
	bare, err := system.NewBare(ctx, program("first"))
	if err != nil {
		return err
	}
	app, names, err := deployFleet(ctx, system, s.fleet)
	if err != nil {
		return err
	}
	var one, all measure.Samples
	for run := range min(s.runs, manyRuns) + 1 {
		files := program(fmt.Sprintf("fleet-%d", run))
		_, cpu, err := bare.Measure(ctx, files)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, fleetPatience)
		rollouts, err := system.Rollouts(limited, app, files, names...)
		cancel()
		if err != nil {
			return err
		}
		if run == 0 {
			continue // the first one warms up
		}
		var last time.Duration
		for _, rollout := range rollouts {
			last = max(last, rollout.Duration())
		}
		one, all = append(one, cpu), append(all, last)
	}
	ideal := time.Duration(s.fleet) * one.Median() / time.Duration(runtime.NumCPU())
	ratio := all.Median().Seconds() / ideal.Seconds()
	t := measure.NewTable(out, fmt.Sprintf("%d Stacks, one commit, workspaces as processes", s.fleet), "median", "min", "max")
	t.Row("processor time of a bare pulumi up", one)
	t.Row("new artifact → last Stack succeeded", all)
	t.Flush()
	fmt.Fprintf(out, "%d × the processor time of a bare update on %d processors: %s; ratio to it: %.2f\n", s.fleet, runtime.NumCPU(), measure.Seconds(ideal), ratio)
	limits.Check(fmt.Sprintf("%d Stacks as processes, one commit, beside the processor time of bare updates", s.fleet), ratio, maxFleetRatio)
	return benchDrift(ctx, s, limits, system, bare, app.Namespace, names, out)
}

// deployFleet creates Stacks that follow one GitRepository, and waits until all are ready.
func deployFleet(ctx context.Context, system *localsystem.System, count int) (app *localsystem.App, names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	app, stack, err := system.Provide(ctx, "fleet", program("first"))
	if err != nil {
		return nil, nil, err
	}
	for i := range count {
		names = append(names, fmt.Sprintf("fleet-%d", i))
		if err := system.Client.Create(ctx, named(stack, names[i])); err != nil {
			return nil, nil, fmt.Errorf("create Stack %s: %w", names[i], err)
		}
	}
	for _, name := range names {
		if _, err := system.WaitReady(ctx, &localsystem.App{Namespace: app.Namespace, Name: name, Repository: app.Repository}); err != nil {
			return nil, nil, err
		}
	}
	return app, names, nil
}
