// Command agent runs pulumi for one workspace and serves the controller that asks for it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

// exitForced is the exit code after a second signal.
const exitForced = 130

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		// The first signal lets a running operation stop in order, which may take minutes; the second does not wait.
		<-signals
		cancel()
		<-signals
		os.Exit(exitForced)
	}()
	switch err := run(ctx, os.Args[1:], os.Stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run executes the command line until it is done or ctx ends. Usage and logs go to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "serve":
			config, err := parseFlags(args[1:], out)
			if err != nil {
				return err
			}
			return serve(ctx, config, out)
		case "version":
			_, err := fmt.Fprintln(out, version)
			return err
		}
	}
	return errors.New("usage: agent serve --listen=ADDRESS --dir=DIR [flags] | agent version")
}
