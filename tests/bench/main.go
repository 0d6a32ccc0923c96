// Command bench measures, in one run on one machine, what stack-controller adds to what it does: a commit's way into a
// Stack's status beside a bare "pulumi up" of the same program, and the artifact store beside a bare download. Run it with
// "make bench".
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

// settings of a run.
type settings struct {
	runs        int   // per measurement
	artifactMiB int64 // size of the artifact that is fetched
}

func main() {
	log.SetOutput(io.Discard)
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.runs, "runs", 7, "how often each thing is measured; the median counts")
	flags.Int64Var(&s.artifactMiB, "artifact-mib", 50, "size of the artifact that is fetched, in MiB")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.runs < 1 || s.artifactMiB < 1 {
		return fmt.Errorf("-runs and -artifact-mib must be at least 1")
	}
	if err := benchRollouts(ctx, s, out); err != nil {
		return err
	}
	return benchFetches(ctx, s, out)
}
