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
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	pollInterval = 100 * time.Millisecond
	// patience is how long nothing may happen at all before a wait is given up.
	patience = 150 * time.Second
	// insistence is for how long a request to the API server is repeated: the longest time that this is away, and more.
	insistence = 8 * time.Minute
	// logLines is how much of stack-controller's log a failed test shows.
	logLines = 60
)

var (
	runs       = flag.Int("runs", 0, "how many runs with random faults; 0 is the short form, of some kinds that heal quickly")
	seed       = flag.Uint64("seed", 1, "what the schedules of the runs follow from")
	worldCount = flag.Int("worlds", 2, "how many worlds play the runs, 1 to 8; each takes about a gigabyte of memory")
	kinds      = flag.String("kinds", "", "comma-separated kinds of faults to take; empty means all")
	only       = flag.Int("only", 0, "the number of the only run to play; 0 means all")
	listKinds  = flag.Bool("list", false, "print all kinds of faults, and do nothing else")
	reportPath = flag.String("report", "", "the file to write the figures to")
)

// worlds are what the tests play in, each with all that it needs. There is at least one.
var worlds []*scene

// world is where the tests play that need only one.
var world *scene

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server tells every request
	flag.Parse()
	ownMounts()
	if *listKinds {
		for _, f := range catalogue() {
			fmt.Println(f.kind)
		}
		return
	}
	if *worldCount < 1 || *worldCount > 8 {
		fmt.Fprintln(os.Stderr, "-worlds must be from 1 to 8")
		os.Exit(2)
	}
	os.Exit(play(m))
}

func play(m *testing.M) (code int) {
	ctx := context.Background()
	cli, err := installPulumi(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		for _, s := range worlds {
			if code != 0 {
				fmt.Fprintf(os.Stderr, "the last that the controller of world %d logged:\n%s\n", s.number,
					controlplane.Tail(s.system.ControllerLog(), logLines))
				s.keepLogs("")
			}
			if err := s.end(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}()
	if worlds, err = startWorlds(ctx, *worldCount, cli); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	world = worlds[0]
	return m.Run()
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
