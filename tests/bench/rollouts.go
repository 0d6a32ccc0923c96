package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/measure"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// rolloutPatience bounds each wait for the Stack.
const rolloutPatience = 2 * time.Minute

// program is what both sides run; each run changes its output.
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
	system, err := stage.Start(ctx, stage.Options{Log: out, Pulumi: wrapped, ControllerArgs: []string{"--max-operations=0"}})
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
	return benchFleet(ctx, s, limits, system, bare, out)
}

// subject is a Stack that follows commits, and a bare update of the same program.
type subject struct {
	apps  *stage.Apps
	app   *stage.App
	calls *callLog
	bare  func(context.Context, gitserver.Files) (time.Duration, error)
}

// measurements are what was measured, one entry per run.
type measurements struct {
	bare    measure.Samples
	rollout measure.Samples
	phases  []measure.Samples // as phaseNames
	calls   int               // of the CLI, over all rollouts
}

// phaseNames say where the time of a rollout goes.
var phaseNames = []string{
	"new artifact seen → Update created",
	"Update created → pulumi starts",
	"pulumi runs",
	"pulumi ends → Update has the result",
	"Update has the result → Stack succeeded",
}

// measureCommits runs commits and bare updates in turn, so that both see the same machine. The first of each warms up. No two measurements of
// one Stack have the same name: an Update of the same content would be taken for that of the commit.
func measureCommits(ctx context.Context, name string, runs int, s subject) (*measurements, error) {
	warm := &measurements{phases: make([]measure.Samples, len(phaseNames))}
	m := &measurements{phases: make([]measure.Samples, len(phaseNames))}
	for run := range runs + 1 {
		target := m
		if run == 0 {
			target = warm
		}
		files := program(fmt.Sprintf("%s-%d", name, run))
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

// ratio of the medians.
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
