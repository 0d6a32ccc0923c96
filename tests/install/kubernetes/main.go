// Command kubernetes stands in for Pulumi's Kubernetes provider, which cannot be built from Go modules: it knows
// kubernetes:yaml/v2:ConfigFile, with a local file, and applies what is in it as the real one does. It does not wait for what
// it applied. The version is that of the provider which config/pulumi asks for.
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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// healthInterval is how often the engine is looked for.
const healthInterval = time.Minute

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// serve answers the engine until it goes away. The port goes to stdout, as every plugin does it.
func serve() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	cluster, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan bool)
	for _, argument := range os.Args[1:] {
		if strings.HasPrefix(argument, "-") {
			continue
		}
		if err := rpcutil.Healthcheck(ctx, argument, healthInterval, func() { close(stop) }); err != nil {
			return fmt.Errorf("watch the engine: %w", err)
		}
		break
	}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: stop,
		Init: func(server *grpc.Server) error {
			pulumirpc.RegisterResourceProviderServer(server, &provider{cluster: cluster})
			return nil
		},
	})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	fmt.Println(handle.Port)
	return <-handle.Done
}
