package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// exitForced is the exit code after a signal that did not want to wait.
const exitForced = 130

// untilSignal returns a context that SIGTERM or SIGINT ends. A running operation then stops in order, which may take minutes;
// a SIGINT after that does not wait. Another SIGTERM changes nothing: those who send it kill what takes too long, and may send it twice.
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
