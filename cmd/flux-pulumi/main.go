// flux-pulumi is a command line for Stacks. Flux finds it as the plugin "pulumi". kubectl finds it, too, when the program is called
// kubectl-pulumi.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/command"
)

// These are set by the linker: -X main.version=v1.2.3. A release names the images of the same version.
var (
	version                     = "dev"
	controllerImage, agentImage string
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	return command.Main(ctx, command.Environment{
		Version: version, Program: os.Args[0], ControllerImage: controllerImage, AgentImage: agentImage, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Now: time.Now,
	}, os.Args[1:])
}
