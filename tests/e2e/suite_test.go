// Package e2e_test runs stack-controller as users do, a process beside real servers, and looks at it from outside.
package e2e_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// patience bounds every wait; what is waited for takes a few seconds.
const patience = 60 * time.Second

// logLines is how much of stack-controller's log a failed run shows.
const logLines = 100

// What the tests make wrong on purpose is small.
const (
	maxArtifactSize = 1 << 20
	maxUnpackedSize = 4 << 20
	maxEntries      = 1000
)

// pollInterval is how often a test looks.
const pollInterval = 50 * time.Millisecond

var (
	system    *stage.Stage
	artifacts *producer
	pulumi    *gate
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if pulumi, err = newGate(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	artifacts = newProducer()
	defer artifacts.Close()
	system, err = stage.Start(context.Background(), stage.Options{Log: os.Stderr, Pulumi: pulumi.path(), ControllerArgs: []string{
		fmt.Sprintf("--artifact-max-size=%d", maxArtifactSize),
		fmt.Sprintf("--artifact-max-unpacked-size=%d", maxUnpackedSize),
		fmt.Sprintf("--artifact-max-entries=%d", maxEntries),
		"--concurrent=8",
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, controlplane.Tail(system.ControllerLog(), logLines))
		}
		if err := system.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	code = m.Run()
	if leaks, err := findCanaries(context.Background(), system); err != nil || len(leaks) > 0 {
		fmt.Fprintln(os.Stderr, "secrets were written to:", leaks, err)
		return 1
	}
	return code
}
