// Command fakeagent is what a tenant has who attacks: an agent that does not keep to the protocol, a client that calls the agents of
// others, and a web server. It is put in the place of /share/agent in a workspace's pod, or runs in a pod of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: fakeagent serve|call|web")
	}
	switch args[0] {
	case "serve": // the command line of the real agent
		return serve(ctx, optionsOf(args[1:]))
	case "call": // ADDRESS TOKEN-FILE
		return callAgent(ctx, args[1:])
	case "web": // ADDRESS
		return serveWeb(ctx, args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// optionsOf reads --name=value; all else does not matter.
func optionsOf(args []string) map[string]string {
	options := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		options[name] = value
	}
	return options
}
