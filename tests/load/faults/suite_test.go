package faults_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// logLines is how many lines of the controller's log a failed test shows.
const logLines = 60

var (
	options    campaign.Options
	worldCount = flag.Int("environments", 2, "how many environments play the runs, 1 to 8; each takes about a gigabyte of memory")
)

// environments are the systems that the runs use. There is at least one.
var environments []*fixture

// environment is the system of the tests that need only one.
var environment *fixture

func TestMain(m *testing.M) {
	beBystander()
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server logs every request
	options.BindFlags(flag.CommandLine)
	flag.Parse()
	if !options.List {
		suite.LongPackage("random faults")
	}
	isolate()
	if options.List {
		for _, f := range catalogue() {
			fmt.Println(f.Kind)
		}
		return
	}
	if *worldCount < 1 || *worldCount > 8 {
		fmt.Fprintln(os.Stderr, "-environments must be from 1 to 8")
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
		for _, s := range environments {
			if code != 0 {
				fmt.Fprintf(os.Stderr, "the last that the controller of environment %d logged:\n%s\n", s.Number,
					controlplane.Tail(s.system.ControllerLog(), logLines))
				s.KeepLogs("")
			}
			if err := s.end(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}()
	if err := startEnvironments(ctx, *worldCount, cli); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	environment = environments[0]
	return m.Run()
}

// startEnvironments starts count environments at the same time. When it fails, environments contains those that were started nevertheless, so that they can
// be stopped.
func startEnvironments(ctx context.Context, count int, cli string) error {
	started := make([]*fixture, count)
	failed := make([]error, count)
	var starting sync.WaitGroup
	for i := range count {
		starting.Go(func() { started[i], failed[i] = startEnvironment(ctx, i+1, cli) })
	}
	starting.Wait()
	environments = slices.DeleteFunc(started, func(s *fixture) bool { return s == nil })
	return errors.Join(failed...)
}

// installPulumi writes a script that runs pulumi with the test provider, wherever it is called.
func installPulumi(ctx context.Context) (path string, err error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "faults")
	if _, err := programs.PutProvider(ctx, home); err != nil {
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

var (
	nextMu     sync.Mutex
	nextBinary *localsystem.Binaries
)

// nextBuild returns a build of controller and agent with another version. All environments share it.
func nextBuild(ctx context.Context) (localsystem.Binaries, error) {
	nextMu.Lock()
	defer nextMu.Unlock()
	if nextBinary != nil {
		return *nextBinary, nil
	}
	dir := filepath.Join(environment.system.Dir, "next")
	next := localsystem.Binaries{Controller: filepath.Join(dir, "stack-controller"), Agent: filepath.Join(dir, "agent")}
	flags := []string{"-buildvcs=false", "-trimpath", "-ldflags=-X main.version=v99.0.0-next"}
	for path, pkg := range map[string]string{next.Controller: ".", next.Agent: "./cmd/agent"} {
		if err := tools.Compile(ctx, filepath.Base(path), tools.RepositoryRoot(), pkg, path, flags, nil); err != nil {
			return localsystem.Binaries{}, err
		}
	}
	nextBinary = &next
	return next, nil
}

// use replaces the executables of the command.
func (c *commandLine) use(binaries localsystem.Binaries) {
	c.args[0] = binaries.Controller
	c.setFlag(agentPathFlag, binaries.Agent)
}
