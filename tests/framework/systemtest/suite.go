// Package systemtest has what the tests on a system share: their suite, and the namespace of each test.
package systemtest

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// logLines is how many lines of stack-controller's log a failed run shows.
const logLines = 150

// Suite is a package whose tests share one system.
type Suite struct {
	Options localsystem.Options
	// SetUp prepares further things on the system that the tests need.
	SetUp func(context.Context, *localsystem.System) error
	// AtOnce is how many tests run at the same time for each processor, two when it is zero. Tests mostly wait, for intervals and for
	// pulumi.
	AtOnce int
	// Leaks returns the places to which stack-controller wrote a secret of the tests. Nil if the tests have no such secrets.
	Leaks func(context.Context, *localsystem.System) ([]string, error)
}

// Run starts the system, runs the tests and stops the system, for each pass of the tests. It returns the exit code of the process.
func (s *Suite) Run(m *testing.M) (code int) {
	return suite.EachPass(func() int { return s.pass(m) })
}

func (s *Suite) pass(m *testing.M) (code int) {
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server logs every request
	if err := flag.Set("test.parallel", strconv.Itoa(cmp.Or(s.AtOnce, 2)*runtime.NumCPU())); err != nil {
		return suite.Failed(err)
	}
	ctx := context.Background()
	s.Options.Log = os.Stderr
	system, err := localsystem.Start(ctx, s.Options)
	if err != nil {
		return suite.Failed(err)
	}
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, controlplane.Tail(system.ControllerLog(), logLines))
		}
		if err := system.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	if err := s.SetUp(ctx, system); err != nil {
		return suite.Failed(err)
	}
	code = m.Run()
	if s.Leaks == nil {
		return code
	}
	leaks, err := s.Leaks(ctx, system)
	if err != nil {
		return suite.Failed(err)
	}
	if len(leaks) > 0 {
		return suite.Failed(fmt.Errorf("secrets were written to %v", leaks))
	}
	return code
}
