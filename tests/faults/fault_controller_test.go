package faults_test

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

var controllerFaults = []fault{
	{kind: "controller killed (SIGKILL)", inject: controllerSignal(syscall.SIGKILL)},
	{kind: "controller stopped (SIGTERM)", inject: controllerSignal(syscall.SIGTERM)},
	{kind: "leadership lost (leader frozen)", shortest: 5 * time.Second, longest: 8 * time.Second, slow: true, inject: freezeLeader},
	{kind: "controller frozen (SIGSTOP)", shortest: 500 * time.Millisecond, longest: 4 * time.Second, inject: freezeController},
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

// election are flags for a leadership that is lost within seconds.
var election = []string{
	"--enable-leader-election=true", "--leader-election-lease-duration=4s",
	"--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s",
}

// freezeLeader replaces the controller by two that elect a leader, and freezes that. The other one takes over; when the first one
// goes on, it has to notice. Healing is back to one controller.
func freezeLeader(ctx context.Context, on *target) (func(context.Context) error, error) {
	if err := on.main.stop(); err != nil {
		return nil, err
	}
	second := &replica{name: "stack-controller-2", system: on.system, command: on.main.command}
	on.main.start(on.ctx, election...)
	heal := func(ctx context.Context) error {
		for _, r := range []*replica{on.main, second} {
			if err := r.stop(); err != nil {
				return err
			}
		}
		before := on.main.started()
		on.main.start(on.ctx)
		return on.main.awaitStart(ctx, before)
	}
	if err := on.main.awaitStart(ctx, on.main.started()-1); err != nil {
		return heal, err
	}
	wait(ctx, 3*time.Second) // until it leads and works
	second.start(on.ctx, election...)
	if err := second.awaitStart(ctx, 0); err != nil {
		return heal, err
	}
	process, _ := on.main.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return heal, fmt.Errorf("freeze the leader: %w", err)
	}
	return func(ctx context.Context) error {
		if err := process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		wait(ctx, 2*time.Second) // both are awake, and one of them has lost
		return heal(ctx)
	}, nil
}
