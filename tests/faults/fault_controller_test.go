package faults_test

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

var controllerFaults = []fault{
	{kind: "controller killed (SIGKILL)", short: true, inject: controllerSignal(syscall.SIGKILL)},
	{kind: "controller stopped (SIGTERM)", inject: controllerSignal(syscall.SIGTERM)},
	{kind: "controller frozen (SIGSTOP)", shortest: 500 * time.Millisecond, longest: 4 * time.Second, inject: freezeController},
	{kind: "controller replaced by another build", inject: upgrade},
	{kind: "leadership lost (leader frozen)", shortest: 5 * time.Second, longest: 8 * time.Second, inject: freezeLeader},
	{kind: "leadership lost (lease deleted)", shortest: time.Second, longest: 6 * time.Second, inject: deleteLease},
}

func controllerSignal(signal syscall.Signal) func(context.Context, *target) (func(context.Context) error, error) {
	return func(_ context.Context, on *target) (func(context.Context) error, error) {
		before := on.main.started()
		err := on.main.signal(signal)
		return func(ctx context.Context) error { return on.main.awaitStart(ctx, before) }, err
	}
}

func freezeController(_ context.Context, on *target) (func(context.Context) error, error) {
	process, _ := on.main.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func(context.Context) error { return process.Signal(syscall.SIGCONT) }, nil
}

// upgrade goes on with the build that does not run now: once forwards, once back. Agents that run stay of the old build.
func upgrade(ctx context.Context, on *target) (func(context.Context) error, error) {
	next, err := nextBuild(ctx)
	if err != nil {
		return nil, fmt.Errorf("build the next version: %w", err)
	}
	before := on.main.started()
	on.main.mu.Lock()
	command := &on.main.command
	if command.args[0] == next.Controller {
		command.use(on.present)
	} else {
		command.use(next)
	}
	on.main.mu.Unlock()
	err = on.main.signal(syscall.SIGTERM)
	return func(ctx context.Context) error { return on.main.awaitStart(ctx, before) }, err
}
