package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/stack-controller/stack-controller/tests/measure"
	"github.com/stack-controller/stack-controller/tests/stage"
)

const (
	// fleetPatience bounds a commit that all Stacks follow, and their first deployment.
	fleetPatience = 5 * time.Minute
	// maxFleetRatio is that of the time that many Stacks take with one commit to the processor time of as many bare updates, divided by
	// the number of processors. A fifth of a bare update is the API server's share, on the same processors.
	maxFleetRatio = 1.6
)

// benchFleet measures many Stacks that follow one commit, more than may run at the same time, beside bare updates.
func benchFleet(ctx context.Context, s settings, limits *measure.Limits, system *stage.Stage, bare *stage.Bare, out io.Writer) error {
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
func deployFleet(ctx context.Context, system *stage.Stage, count int) (app *stage.App, names []string, err error) {
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
		if _, err := system.WaitReady(ctx, &stage.App{Namespace: app.Namespace, Name: name, Repository: app.Repository}); err != nil {
			return nil, nil, err
		}
	}
	return app, names, nil
}
