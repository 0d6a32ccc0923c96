// Command up starts a cluster with Flux's source-controller and leaves it running in the background, or ends the cluster that runs there.
// Run it with "make cluster-up" and "make cluster-down".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/background"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/command"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func main() { command.Main("cluster", run) }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	down := flags.Bool("down", false, "end the cluster that runs, and do nothing else")
	check := flags.Bool("check", false, "say what this machine lacks for a cluster, and do nothing else")
	detached := flags.Bool("detached", false, "for internal use: this is the process in the background")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *check:
		return cluster.Missing()
	case *down:
		return end(os.Stdout)
	case *detached:
		return serve(ctx)
	default:
		return detach(ctx)
	}
}

// serve starts the cluster, lets the parent process return, and waits until it is asked to end.
func serve(ctx context.Context) (err error) {
	background.Enter()
	record, err := leftovers.New(recordKind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, record.Remove()) }()
	dir, err := record.NewDirectory("stack-cluster-")
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Log: os.Stdout, Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := install(ctx, c); err != nil {
		return err
	}
	if err := invite(ctx, os.Stdout, c); err != nil {
		return err
	}
	if err := background.SignalReady(filepath.Join(c.Dir, "cluster.log")); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// install adds the image of busybox and source-controller, for people who want to try things out.
func install(ctx context.Context, c *cluster.Cluster) error {
	progress := func(line string) { fmt.Println(line) }
	busybox, err := images.Busybox(ctx, progress)
	if err != nil {
		return err
	}
	if err := c.LoadImage(ctx, busybox.Tar); err != nil {
		return err
	}
	sourceController, err := images.SourceController(ctx, progress)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := c.InstallFlux(ctx, sourceController); err != nil {
		return err
	}
	fmt.Printf("Flux is ready after %s\n", time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// invite prints how to use the cluster.
func invite(ctx context.Context, out io.Writer, c *cluster.Cluster) error {
	kubectl, err := tools.Path(ctx, "kubectl", nil)
	if err != nil {
		return err
	}
	busybox, err := images.Busybox(ctx, nil)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, `
The cluster keeps running, in namespaces of its own. To use it:

export KUBECONFIG=%s
alias kubectl='%s'
alias ctr='%s --namespace=k8s.io'
kubectl get pods --all-namespaces
ctr images import - <IMAGE.tar
kubectl run shell --image=%s --image-pull-policy=Never -it -- sh

The logs of its servers are %s.
"make cluster-down" ends and removes it.
`, c.KubeconfigPath, strings.Join(c.Command(ctx, kubectl).Args, " "), strings.Join(c.NodeCommand(ctx, "ctr").Args, " "), busybox.Reference, c.LogPath("*"))
	return err
}

// recordKind is the kind of the record of the background process. At most one cluster runs at a time.
const recordKind = "cluster"

// runningRecord returns the record of the running cluster, or nil if no cluster runs. If a cluster crashed, its supervisor has removed
// everything.
func runningRecord() (*leftovers.Record, error) {
	running, err := leftovers.Records(recordKind, true)
	if err != nil || len(running) == 0 {
		return nil, err
	}
	return running[0], nil
}

// detach starts the cluster in a background process and returns when the cluster is ready.
func detach(ctx context.Context) error {
	switch running, err := runningRecord(); {
	case err != nil:
		return err
	case running != nil:
		return fmt.Errorf(`one runs already, in %s; end it with "make cluster-down"`, running.Directories[0])
	}
	return background.Start(ctx, "cluster", "-detached")
}

// end makes the background process end the cluster.
func end(out io.Writer) error {
	r, err := runningRecord()
	if err != nil {
		return err
	}
	if r == nil {
		_, err := fmt.Fprintln(out, "no cluster runs")
		return err
	}
	if err := r.End(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "removed the cluster in", r.Directories[0])
	return err
}
