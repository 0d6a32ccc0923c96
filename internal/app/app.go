// Package app is the program stack-controller: its flags, its manager, and the wiring of its controllers.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/fluxcd/pkg/runtime/logger"

	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/report/tracing"
)

// controllerName is the name of the controller in events, leases and field managers.
const controllerName = "stack-controller"

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// Main runs the program with these arguments until the context ends, and returns its exit code.
func Main(ctx context.Context, version string, args []string, stdout, stderr io.Writer) int {
	limitMemory()
	return exitCode(run(ctx, version, args, stdout), stderr)
}

// exitCode reports the error and returns the exit code for it.
func exitCode(err error, stderr io.Writer) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v\nUsage: %s [flags]; --help lists them.\n", controllerName, err, controllerName)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "%s: %v\n", controllerName, err)
		return exitFailure
	}
}

// run runs the controller. It returns when the context ends, or when the controller cannot go on.
func run(ctx context.Context, version string, args []string, stdout io.Writer) (err error) {
	o, err := parseOptions(args, stdout)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.version {
		fmt.Fprintln(stdout, version)
		return nil
	}
	if err := bypassProxy(o.workspace.clusterDomain); err != nil {
		return err
	}
	logger.SetLogger(logger.NewLogger(o.log))
	continueAfterPanics()
	setupLog := ctrl.Log.WithName("setup")
	setupLog.Info("starting", "version", version)

	mgr, err := newManager(ctx, o)
	if err != nil {
		return err
	}
	transports, err := newTransports(mgr, o)
	if err != nil {
		return err
	}
	recorder, err := newRecorder(mgr, transports.events, o)
	if err != nil {
		return err
	}
	var observers []metrics.Observer
	if o.tracing {
		tracer, err := tracing.New(ctx, controllerName, version, ctrl.Log.WithName("tracing"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tracer.Stop()) }()
		observers = append(observers, tracer)
	}
	if err := addControllers(ctx, mgr, recorder, transports.artifacts, observers, o); err != nil {
		return err
	}
	return startManager(ctx, mgr, recorder)
}

// limitMemory leaves a tenth of the memory limit in the environment variable GOMEMLIMIT to memory that Go does not count: the buffers of
// the kernel and the pages of the executable. As in Flux's controllers, the variable is the memory limit of the container, at which the
// kernel kills the process. Go's limit is a soft one: Go lets garbage fill the memory up to it.
func limitMemory() {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}
