// Command demo shows stack-controller at work on one machine, with real servers and without privileges: a commit in a git
// repository becomes a succeeded "pulumi up". Run it with "make demo", "make demo KEEP=1" and "make demo-clean".
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	// What libraries log about themselves is not part of the show.
	log.SetOutput(io.Discard)
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	keep := flags.Bool("keep", false, "leave everything running in the background")
	detached := flags.Bool("detached", false, "for internal use: this is the process in the background")
	clean := flags.Bool("clean", false, "end and remove what earlier runs left, and do nothing else")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *clean:
		return cleanAll(os.Stdout)
	case *detached:
		return runDetached(ctx)
	case *keep:
		return detach(ctx)
	default:
		return runOnce(ctx)
	}
}

// runOnce shows everything and leaves nothing.
func runOnce(ctx context.Context) error {
	d, err := newDemo(os.Stdout)
	if err != nil {
		return err
	}
	err = d.show(ctx)
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted; everything that it started was stopped and removed")
	}
	return d.stop(err)
}
