package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/stage"
)

// election are flags for a leadership that is lost within seconds.
var election = []string{
	"--enable-leader-election=true", "--leader-election-lease-duration=4s",
	"--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s",
}

// elect replaces the controller by two that elect a leader, which is the first one. Healing is back to one controller.
func elect(ctx context.Context, on *target) (heal func(context.Context) error, err error) {
	if err := on.main.stop(); err != nil {
		return nil, err
	}
	second := &replica{name: "stack-controller-2", system: on.system, command: on.main.line()}
	before := on.main.started()
	on.main.start(on.ctx, election...)
	heal = func(ctx context.Context) error {
		for _, r := range []*replica{on.main, second} {
			if r.cancel == nil {
				continue
			}
			if err := r.stop(); err != nil {
				return err
			}
		}
		before := on.main.started()
		on.main.start(on.ctx)
		return on.main.awaitStart(ctx, before)
	}
	if err := on.main.awaitStart(ctx, before); err != nil {
		return heal, err
	}
	wait(ctx, 3*time.Second) // until it leads and works
	second.start(on.ctx, election...)
	return heal, second.awaitStart(ctx, 0)
}

// freezeLeader freezes the leader. The other one takes over; when the first one goes on, it has to notice.
func freezeLeader(ctx context.Context, on *target) (func(context.Context) error, error) {
	heal, err := elect(ctx, on)
	if err != nil {
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

// deleteLease deletes what the leadership is written down in: whoever comes first has it.
func deleteLease(ctx context.Context, on *target) (func(context.Context) error, error) {
	heal, err := elect(ctx, on)
	if err != nil {
		return heal, err
	}
	leases := &coordinationv1.LeaseList{}
	if err := on.insist(ctx, func(ctx context.Context) error {
		return on.system.Client.List(ctx, leases, client.InNamespace(stage.Namespace))
	}); err != nil {
		return heal, err
	}
	deleted := 0
	for i, lease := range leases.Items {
		if strings.Contains(lease.Name, "stack-controller") {
			err = errors.Join(err, on.remove(ctx, &leases.Items[i]))
			deleted++
		}
	}
	if deleted == 0 {
		err = errors.New("there is no lease of stack-controller")
	}
	return heal, err
}
