// Package command has what the commands of the tests have in common.
package command

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Main runs a command with its arguments until it ends, or until the process is interrupted, which ends the context. What libraries log is
// not shown. If the command fails, Main prints the error after the name, and ends the process with the exit code 1.
func Main(name string, run func(ctx context.Context, args []string) error) {
	log.SetOutput(io.Discard)
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, err)
		os.Exit(1)
	}
}
