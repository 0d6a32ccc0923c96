// Command provider is a real Pulumi provider for tests: its resources take time, fail, and print secrets on demand.
//
// In a YAML program (the version tells the CLI to use the installed plugin, instead of looking for a newer one):
//
//	resources:
//	  slow:
//	    type: test:index:Sleep
//	    properties:
//	      seconds: 30               # how long create, update and refresh take
//	      deleteSeconds: 0          # how long delete takes
//	      failMessage: no quota     # fail with this message, once the time is over
//	      echo: ${password}         # print this value to the log of the operation, and return it as the output echo
//	      ignoreCancel: false       # go on although the operation is cancelled
//	      journal: /tmp/journal     # append a line "<verb> start" and "<verb> end" or "<verb> aborted" per operation
//	      file: /tmp/there          # the file that create and update write, and delete removes, once the time is over
//	      content: hello            # what is in the file; nothing when it is missing
//	    options: {version: 0.1.0}
//
// A refresh sees what somebody else made of the file, and that a resource is gone with its file.
//
// Package install puts it where the CLI finds it.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
)

// healthInterval is how often the engine is looked for; real providers do the same.
const healthInterval = 5 * time.Minute

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// serve answers the engine until it goes away. The port goes to stdout, as every plugin does it.
func serve() error {
	provider := newProvider()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan bool)
	if engine := engineAddress(os.Args[1:]); engine != "" {
		if err := provider.connect(engine); err != nil {
			return err
		}
		// An engine that was killed is noticed here, within five minutes.
		if err := rpcutil.Healthcheck(ctx, engine, healthInterval, func() { close(stop) }); err != nil {
			return err
		}
	}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: stop,
		Init: func(server *grpc.Server) error {
			pulumirpc.RegisterResourceProviderServer(server, provider)
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Println(handle.Port)
	return <-handle.Done
}

// engineAddress is the last argument that is not a flag.
func engineAddress(args []string) string {
	for i := len(args) - 1; i >= 0; i-- {
		if !strings.HasPrefix(args[i], "-") {
			return args[i]
		}
	}
	return ""
}
