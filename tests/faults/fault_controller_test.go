package faults_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
	"github.com/stack-controller/stack-controller/tests/stage"
)

var controllerFaults = []campaign.Fault{
	{Kind: "controller killed (SIGKILL)", Short: true, Inject: hitting(controllerSignal(syscall.SIGKILL))},
	{Kind: "controller stopped (SIGTERM)", Inject: hitting(controllerSignal(syscall.SIGTERM))},
	{Kind: "controller frozen (SIGSTOP)", Shortest: 500 * time.Millisecond, Longest: 4 * time.Second, Inject: hitting(freezeController)},
	{Kind: "controller replaced by another build", Inject: hitting(upgrade)},
	{Kind: "leadership lost (leader frozen)", Shortest: 5 * time.Second, Longest: 8 * time.Second, Inject: hitting(freezeLeader)},
	{Kind: "leadership lost (lease deleted)", Shortest: time.Second, Longest: 6 * time.Second, Inject: hitting(deleteLease)},
}

func controllerSignal(signal syscall.Signal) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		before := on.main.started()
		err := on.main.signal(signal)
		return func(ctx context.Context) error { return on.main.awaitStart(ctx, before) }, err
	}
}

func freezeController(_ context.Context, on *target) (campaign.Heal, error) {
	process, _ := on.main.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func(context.Context) error { return process.Signal(syscall.SIGCONT) }, nil
}

// upgrade goes on with the build that does not run now: once forwards, once back. Agents that run stay of the old build.
func upgrade(ctx context.Context, on *target) (campaign.Heal, error) {
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

// election are flags for a leadership that is lost within seconds.
var election = []string{
	"--enable-leader-election=true", "--leader-election-lease-duration=4s",
	"--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s",
}

// elect replaces the controller by two that elect a leader, which is the first one. Healing is back to one controller.
func elect(ctx context.Context, on *target) (heal campaign.Heal, err error) {
	if err := on.main.stop(); err != nil {
		return nil, err
	}
	second := &replica{name: "stack-controller-2", system: on.system, command: on.main.line()}
	before, began := on.main.started(), time.Now()
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
	if err := on.awaitLeader(ctx, began); err != nil {
		return heal, err
	}
	second.start(on.ctx, election...)
	return heal, second.awaitStart(ctx, 0)
}

// freezeLeader freezes the leader. The other one takes over; when the first one goes on, it has to notice.
func freezeLeader(ctx context.Context, on *target) (campaign.Heal, error) {
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
		campaign.Wait(ctx, 2*time.Second) // both are awake, and one of them has lost
		return heal(ctx)
	}, nil
}

// deleteLease deletes what the leadership is written down in: whoever comes first has it.
func deleteLease(ctx context.Context, on *target) (campaign.Heal, error) {
	heal, err := elect(ctx, on)
	if err != nil {
		return heal, err
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: leaseName}}
	return heal, on.Remove(ctx, lease)
}

// leaseName is what main.go calls the lease.
const leaseName = "stack-controller-leader-election"

// awaitLeader waits until somebody has led since then.
func (s *scene) awaitLeader(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, campaign.Insistence)
	defer cancel()
	key := client.ObjectKey{Namespace: stage.Namespace, Name: leaseName}
	for {
		lease := &coordinationv1.Lease{}
		err := s.Client.Get(ctx, key, lease)
		if renewed := lease.Spec.RenewTime; err == nil && renewed != nil && renewed.After(since) && *lease.Spec.HolderIdentity != "" {
			return nil
		}
		if !campaign.Wait(ctx, campaign.PollInterval) {
			return errors.Join(errors.New("nobody leads"), err)
		}
	}
}
