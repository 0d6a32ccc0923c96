package main

import (
	"context"
	"fmt"
	"io"

	"github.com/stack-controller/stack-controller/tests/background"
	"github.com/stack-controller/stack-controller/tests/leftovers"
)

// recordKind is that of the record of the process in the background. There is one cluster at a time.
const recordKind = "cluster"

// runningRecord returns nil when no cluster runs. Of one that crashed its supervisor has removed everything.
func runningRecord() (*leftovers.Record, error) {
	running, err := leftovers.Records(recordKind, true)
	if err != nil || len(running) == 0 {
		return nil, err
	}
	return running[0], nil
}

// detach starts the cluster in a process of its own and returns when it is up.
func detach(ctx context.Context) error {
	switch running, err := runningRecord(); {
	case err != nil:
		return err
	case running != nil:
		return fmt.Errorf(`one runs already, in %s; end it with "make cluster-down"`, running.Directories[0])
	}
	return background.Start(ctx, "cluster", "-detached")
}

// end has the process in the background end the cluster.
func end(out io.Writer) error {
	r, err := runningRecord()
	if err != nil {
		return err
	}
	if r == nil {
		_, err := fmt.Fprintln(out, "no cluster runs")
		return err
	}
	if err := r.End(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "removed the cluster in", r.Directories[0])
	return err
}
