// stack-controller reconciles Pulumi stacks with the artifacts of Flux sources.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/fluxcd/pkg/runtime/logger"
)

// controllerName is how the controller calls itself in events, leases and field managers.
const controllerName = "stack-controller"

// version is set by the linker: -X main.version=v1.2.3.
var version = "dev"

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(exitCode(run(ctrl.SetupSignalHandler(), os.Args[1:], os.Stdout), os.Stderr))
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

// run is the controller: it returns when the context ends, or when it cannot go on.
func run(ctx context.Context, args []string, stdout io.Writer) error {
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
	logger.SetLogger(logger.NewLogger(o.log))
	setupLog := ctrl.Log.WithName("setup")
	setupLog.Info("starting", "version", version)

	mgr, err := newManager(ctx, o)
	if err != nil {
		return err
	}
	recorder, err := newRecorder(mgr, o)
	if err != nil {
		return err
	}
	if err := addControllers(ctx, mgr, recorder, o); err != nil {
		return err
	}
	return startManager(ctx, mgr, recorder)
}
