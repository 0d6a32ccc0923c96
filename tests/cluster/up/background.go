package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/tests/background"
	"github.com/stack-controller/stack-controller/tests/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// endPatience is how long the process in the background may take to end.
	endPatience = 60 * time.Second
	endPoll     = 50 * time.Millisecond
)

// record names the process in the background and its directory. There is one cluster at a time, so one record.
type record struct {
	// PID and StartTime identify the process; the id alone may belong to another one by now.
	PID       int
	StartTime string
	Dir       string
}

func recordPath() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "cluster.json"), os.MkdirAll(cache, 0o755)
}

// newRecord makes the directory of a cluster and records it for this process.
func newRecord() (r *record, err error) {
	path, err := recordPath()
	if err != nil {
		return nil, err
	}
	r = &record{PID: os.Getpid()}
	if r.StartTime, err = supervise.StartTime(r.PID); err != nil {
		return nil, fmt.Errorf("find this process: %w", err)
	}
	if r.Dir, err = os.MkdirTemp("", "stack-cluster-"); err != nil {
		return nil, fmt.Errorf("create the cluster's directory: %w", err)
	}
	content, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write the record: %w", err), os.Remove(r.Dir))
	}
	return r, nil
}

// readRecord returns nil when there is none of a process that runs.
func readRecord() (*record, error) {
	path, err := recordPath()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of the cluster: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read the record %s: %w", path, err)
	}
	if !r.running() {
		return nil, nil // its supervisor has removed everything
	}
	return r, nil
}

func (r *record) running() bool {
	started, err := supervise.StartTime(r.PID)
	return err == nil && started == r.StartTime
}

func (r *record) remove() error {
	path, err := recordPath()
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(r.Dir), os.Remove(path))
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
	// The handle is taken before the check, so that the signal cannot reach a process that got the id later.
	process, err := os.FindProcess(r.PID)
	if err != nil || !r.running() {
		return nil
	}
	if err := process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end process %d: %w", r.PID, err)
	}
	deadline := time.Now().Add(endPatience)
	for r.running() {
		if time.Now().After(deadline) {
			return fmt.Errorf("the cluster (pid %d) did not end within %s", r.PID, endPatience)
		}
		time.Sleep(endPoll)
	}
	_, err = fmt.Fprintln(out, "removed the cluster in", r.Dir)
	return err
}

// commandLine is the command as one types it.
func commandLine(cmd *exec.Cmd) string { return strings.Join(cmd.Args, " ") }
