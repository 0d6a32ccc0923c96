package cluster

import (
	"context"
	"fmt"
	"github.com/stack-controller/stack-controller/tests/suite"
	"os"
)

// Test is the part of testing.TB that Require needs.
type Test interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// Require skips the test, and says so on standard error, when this machine cannot run a cluster. Where CI_RUN is 1 in the
// environment, as .ci/run sets it, the test fails instead: nothing may be skipped there unnoticed.
func Require(t Test) {
	t.Helper()
	err := Missing()
	switch {
	case err == nil:
	case mustRun():
		t.Fatal(err)
	default:
		fmt.Fprintln(os.Stderr, "SKIPPED:", err)
		t.Skip(err)
	}
}

// RunTests is the body of a package's TestMain, as controlplane.RunTests is, for tests of which each one needs the cluster. On a
// machine that cannot run a cluster it behaves like Require.
func RunTests(m interface{ Run() int }, options Options, setup func(*Cluster) error) (code int) {
	if err := Missing(); err != nil {
		return SkipAll(err)
	}
	if options.Log == nil {
		options.Log = os.Stderr
	}
	c, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := c.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	if err := setup(c); err != nil {
		fmt.Fprintln(os.Stderr, "set up the tests:", err)
		return 1
	}
	return m.Run()
}

// SkipAll returns the exit code of a package whose tests cannot run because of the error, and says so on standard error.
func SkipAll(err error) (code int) {
	if mustRun() {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "SKIPPED, all tests of this package:", err)
	return 0
}

func mustRun() bool { return os.Getenv("CI_RUN") == "1" }
