package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// rolloutPatience bounds each wait for the Stack.
const rolloutPatience = 2 * time.Minute

// program is what both sides run; each run changes its output.
func program(output string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: bench\nruntime: yaml\nvariables:\n  value: %s\noutputs:\n  value: ${value}\n", output)}
}

// benchRollouts measures commits and bare updates in turn, so that both see the same machine.
func benchRollouts(ctx context.Context, s settings, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "stack-bench-")
	if err != nil {
		return fmt.Errorf("create the directory of the calls: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress := func(line string) { fmt.Fprintln(out, line) }
	pulumi, err := tools.Path(ctx, "pulumi", progress)
	if err != nil {
		return err
	}
	calls, err := newCallLog(dir, pulumi)
	if err != nil {
		return err
	}
	system, err := stage.Start(ctx, stage.Options{Log: out, Pulumi: calls.wrapper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Stop()) }()

	m, err := measure(ctx, s, system, calls)
	if err != nil {
		return err
	}
	m.print(out)
	return nil
}

// measurements are what was measured, one entry per run.
type measurements struct {
	bare    samples
	rollout samples
	phases  []samples // as phaseNames
	calls   int       // of the CLI, over all rollouts
}

// phaseNames say where the time of a rollout goes.
var phaseNames = []string{
	"new artifact seen → Update created",
	"Update created → pulumi starts",
	"pulumi runs",
	"pulumi ends → Update has the result",
	"Update has the result → Stack succeeded",
}

func measure(ctx context.Context, s settings, system *stage.Stage, calls *callLog) (*measurements, error) {
	app, err := system.Deploy(ctx, "bench", program("first"))
	if err != nil {
		return nil, err
	}
	readyCtx, cancel := context.WithTimeout(ctx, rolloutPatience)
	defer cancel()
	if _, err := system.WaitReady(readyCtx, app); err != nil {
		return nil, err
	}
	bare, err := system.NewBare(ctx, program("first"))
	if err != nil {
		return nil, err
	}
	m := &measurements{phases: make([]samples, len(phaseNames))}
	for run := range s.runs {
		files := program(fmt.Sprintf("run-%d", run))
		duration, err := bare.Up(ctx, files)
		if err != nil {
			return nil, err
		}
		m.bare = append(m.bare, duration)
		if err := m.rollOut(ctx, system, app, files, calls); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *measurements) rollOut(ctx context.Context, system *stage.Stage, app *stage.App, files gitserver.Files, calls *callLog) error {
	ctx, cancel := context.WithTimeout(ctx, rolloutPatience)
	defer cancel()
	if err := calls.reset(); err != nil {
		return err
	}
	r, err := system.Rollout(ctx, app, files)
	if err != nil {
		return err
	}
	made, err := calls.read()
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

func (m *measurements) print(out io.Writer) {
	t := newTable(out, "", "median", "min", "max")
	t.row("bare pulumi up", m.bare)
	t.row("new artifact → Stack succeeded", m.rollout)
	for i, phase := range m.phases {
		t.row("  "+phaseNames[i], phase)
	}
	t.flush()
	fmt.Fprintf(out, "ratio of the medians: %.2f; calls of the pulumi CLI per update: %.1f; runs: %d\n\n",
		m.rollout.median().Seconds()/m.bare.median().Seconds(), float64(m.calls)/float64(len(m.rollout)), len(m.rollout))
}
