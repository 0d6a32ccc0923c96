// Package podfaults_test injects random faults into a real cluster, at chosen moments of updates, while Stacks change, and judges
// from outside whether every intended change was made exactly once and whether all that the system says is true. It is what
// package faults is to workspaces that are processes, for workspaces that are pods.
//
// The faults hit what all pods share: the controller and the node. That is why the package has a cluster of its own. A short form
// runs with the other tests; "make pod-faults" runs as many as asked and writes docs/reliability-pods.md. What a run does follows
// from its seed, except for what the machine's speed makes of it.
//
// The state and the journals are in a directory of this machine, which pods have as a volume: they outlive pods and node.
package podfaults_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
	"github.com/stack-controller/stack-controller/tests/podstage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

var options campaign.Options

// world is what the tests play in.
var world *scene

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server tells every request
	options.BindFlags(flag.CommandLine)
	flag.Parse()
	if !options.List {
		suite.LongPackage("random faults of pods and nodes")
	}
	if options.List {
		for _, f := range catalogue {
			fmt.Println(f.Kind)
		}
		return
	}
	os.Exit(podstage.RunTests(runner{m}, podstage.Options{}, func(s *podstage.Stage) { world = newScene(s) }))
}

// runner is a *testing.M that is watched by the observer of processes.
type runner struct{ tests interface{ Run() int } }

func (r runner) Run() int {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { world.observer.run(ctx) })
	world.Start(ctx)
	code := r.tests.Run()
	cancel()
	watching.Wait()
	world.Stop()
	if code != 0 {
		if log, err := world.system.ControllerLog(context.Background(), logLines); err == nil {
			fmt.Fprintln(os.Stderr, log)
		}
	}
	return code
}

// logLines is how much of stack-controller's log a failed run shows.
const logLines = 60
