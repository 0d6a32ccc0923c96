package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// exitForced is the exit code after a second signal that ends the agent at once.
const exitForced = 130

// untilSignal returns a context that SIGTERM or SIGINT cancels. A running operation then stops gracefully, which may take minutes. A SIGINT
// after that ends the process at once. Another SIGTERM has no effect: programs that send SIGTERM kill a process that takes too long anyway,
// and may send it twice.
func untilSignal(parent context.Context) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		for received := range signals {
			if received == os.Interrupt {
				os.Exit(exitForced)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
	}
}
