// Package faults_test injects random faults at random moments while Stacks change, and judges from outside whether every
// intended change was made exactly once and whether all that the system says is true.
//
// A short form runs with the other tests; "make faults" runs as many as asked and writes docs/reliability.md. A run is a
// function of its seed, except for what the machine's speed makes of it.
package faults_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/provider/install"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	pollInterval = 100 * time.Millisecond
	// patience is how long nothing may happen at all before a wait is given up.
	patience = 150 * time.Second
	// logLines is how much of stack-controller's log a failed test shows.
	logLines = 60
)

var (
	runs       = flag.Int("runs", 0, "how many runs with random faults; 0 is the short form, of the faults that heal quickly")
	seed       = flag.Uint64("seed", 1, "what the schedules of the runs follow from")
	kinds      = flag.String("kinds", "", "comma-separated kinds of faults to take; empty means all")
	reportPath = flag.String("report", "", "the file to write the figures to")
)

// world is what the tests play in.
var world *scene

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server tells every request
	flag.Parse()
	os.Exit(play(m))
}

func play(m *testing.M) (code int) {
	ctx := context.Background()
	cli, err := installPulumi(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	system, err := stage.Start(ctx, stage.Options{Log: os.Stderr, Pulumi: cli, ControllerArgs: []string{"--concurrent=8"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, controlplane.Tail(system.ControllerLog(), logLines))
			keepLogs(system)
		}
		if err := system.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if world, err = newScene(ctx, system, cli); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer world.close()
	return m.Run()
}

// keepLogs copies the logs to where a developer finds them, when asked to.
func keepLogs(system *stage.Stage) {
	target := os.Getenv("FAULTS_LOGS")
	if target == "" {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(system.Dir, "*.log"))
	for _, log := range logs {
		if content, err := os.ReadFile(log); err == nil {
			_ = os.WriteFile(filepath.Join(target, filepath.Base(log)), content, 0o600)
		}
	}
}

// installPulumi writes a pulumi that finds the test provider wherever it is called.
func installPulumi(ctx context.Context) (path string, err error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "faults")
	if err := install.Install(ctx, home); err != nil {
		return "", err
	}
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return "", err
	}
	const plugin = "plugins/resource-test-v0.1.0"
	script := fmt.Sprintf(`#!/bin/sh
mkdir -p "$PULUMI_HOME/%[1]s" && ln -sf %[2]s/%[1]s/pulumi-resource-test "$PULUMI_HOME/%[1]s/"
exec %[3]s "$@"
`, plugin, home, cli)
	wrapper := filepath.Join(home, "pulumi")
	if err := os.WriteFile(wrapper+".new", []byte(script), 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(wrapper+".new", wrapper); err != nil {
		return "", err
	}
	return wrapper, nil
}
