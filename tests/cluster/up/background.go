package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/background"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// recordPath is where the process in the background is recorded. There is one cluster at a time, so one record.
func recordPath() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "cluster.json"), nil
}

// readRecord returns nil when there is none of a process that runs: then its supervisor has removed everything.
func readRecord() (*background.Record, error) {
	path, err := recordPath()
	if err != nil {
		return nil, err
	}
	r, err := background.ReadRecord(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if running, err := r.Process.Running(); err != nil || !running {
		return nil, err
	}
	return r, nil
}

// detach starts the cluster in a process of its own and returns when it is up.
func detach(ctx context.Context) error {
	switch running, err := readRecord(); {
	case err != nil:
		return err
	case running != nil:
		return fmt.Errorf(`one runs already, in %s; end it with "make cluster-down"`, running.Dir)
	}
	return background.Start(ctx, "cluster", "-detached")
}

// end has the process in the background end the cluster.
func end(out io.Writer) error {
	r, err := readRecord()
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
	_, err = fmt.Fprintln(out, "removed the cluster in", r.Dir)
	return err
}
