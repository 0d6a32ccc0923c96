// Command agent runs pulumi for one workspace, as the controller requests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// version is set by the linker.
var version = "dev"

func main() {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = run(context.Background(), os.Args[1:], os.Stderr)
	}()
	reapOrphans(done)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		if len(os.Args) < 2 || os.Args[1] != "exec" {
			writeTerminationMessage(err)
		}
		os.Exit(1)
	}
}

// writeTerminationMessage writes why the container ends to the file that Kubernetes reads. The log of the container would contain the
// reason too, but also what programs print.
func writeTerminationMessage(reason error) {
	file, err := os.OpenFile("/dev/termination-log", os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return // not in a container of Kubernetes
	}
	_, _ = fmt.Fprintln(file, "error:", reason) // an error can no longer be reported
	_ = file.Close()
}

// run executes the command line until it is done or ctx is done. Usage and logs go to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "serve":
			config, err := parseFlags(args[1:], out)
			if err != nil {
				return err
			}
			return serve(ctx, config, out)
		case "install":
			return install(args[1:], out)
		case "exec":
			return execute(args[1:], out)
		case "version":
			_, err := fmt.Fprintln(out, version)
			return err
		}
	}
	return errors.New("usage: agent serve --listen=ADDRESS --dir=DIR [flags] | agent install --to=FILE [flags] | agent exec [flags] COMMAND [ARGUMENT...] | agent version")
}
