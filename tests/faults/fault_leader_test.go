package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
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
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: leaseName}}
	return heal, on.remove(ctx, lease)
}

// leaseName is what main.go calls the lease.
const leaseName = "stack-controller-leader-election"

// awaitLeader waits until somebody has led since then.
func (s *scene) awaitLeader(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, insistence)
	defer cancel()
	key := client.ObjectKey{Namespace: stage.Namespace, Name: leaseName}
	for {
		lease := &coordinationv1.Lease{}
		err := s.system.Client.Get(ctx, key, lease)
		if renewed := lease.Spec.RenewTime; err == nil && renewed != nil && renewed.After(since) && *lease.Spec.HolderIdentity != "" {
			return nil
		}
		if !wait(ctx, pollInterval) {
			return errors.Join(errors.New("nobody leads"), err)
		}
	}
}

// allowElection gives the controller the rights that electing a leader needs, as its manifests do.
func (s *scene) allowElection(ctx context.Context) error {
	for _, name := range []string{"leader_election_role.yaml", "leader_election_role_binding.yaml"} {
		manifest, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "rbac", name))
		if err != nil {
			return err
		}
		here := strings.ReplaceAll(string(manifest), "namespace: system", "namespace: "+stage.Namespace)
		if _, err := s.system.ControlPlane.KubectlInput(ctx, here, "apply", "--filename=-"); err != nil {
			return err
		}
	}
	return nil
}
