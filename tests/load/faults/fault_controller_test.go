package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

// The things that faults hold.
const (
	theController = "controller" // its processes
	theAPIServer  = "API server" // and etcd
	theSource     = "source-controller"
	theAgents     = "agents"
	theBackend    = "backend"
)

// target is what a fault can hit.
type target struct {
	*campaign.Target
	*fixture
}

// injection starts a fault.
type injection = func(context.Context, *target) (campaign.Heal, error)

// hitting adapts an injection to the campaign.
func hitting(inject injection) func(context.Context, *campaign.Target) (campaign.Heal, error) {
	return func(ctx context.Context, on *campaign.Target) (campaign.Heal, error) {
		return inject(ctx, &target{Target: on, fixture: on.Environment.System.(*fixture)})
	}
}

// catalogue lists all kinds of faults that are possible here, in the order in which the short form uses them.
func catalogue() []campaign.Fault {
	var all []campaign.Fault
	add := func(holds string, faults []campaign.Fault) {
		for _, f := range faults {
			if f.Holds == nil && holds != "" {
				f.Holds = []string{holds}
			}
			all = append(all, f)
		}
	}
	add(theController, controllerFaults)
	add(theAgents, processFaults)
	if isIsolated() {
		add("", processIDFaults)
	}
	add(theAPIServer, clusterFaults)
	add("", objectFaults)
	add(theSource, sourceFaults)
	add(theBackend, backendFaults)
	add(theAPIServer, requestFaults)
	if isIsolated() {
		add("", diskFaults)
	}
	return all
}

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

// upgrade restarts the controller with the other build: the next one, or the first one again. Agents that are running keep the old build.
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

// election has flags with which a leader loses its lease within seconds.
var election = []string{
	"--enable-leader-election=true", "--leader-election-lease-duration=4s",
	"--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s",
}

// elect replaces the controller by two that elect a leader. The first one is the leader. Heal goes back to one controller.
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

// freezeLeader freezes the leader, and the other controller takes over. When the first one continues, it has to notice that it is not the
// leader any longer.
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
		campaign.Wait(ctx, 2*time.Second) // both are running, and one of them has lost the lease
		return heal(ctx)
	}, nil
}

// deleteLease deletes the lease. The controller that creates it first is the next leader.
func deleteLease(ctx context.Context, on *target) (campaign.Heal, error) {
	heal, err := elect(ctx, on)
	if err != nil {
		return heal, err
	}
	lease := &coordinationv1.Lease{Namespace: localsystem.Namespace, Name: leaseName}
	return heal, on.Remove(ctx, lease)
}

// leaseName is the name of the lease without shards, see internal/shard.Lease.
const leaseName = "stack-controller-leader-election"

// awaitLeader waits until a leader has renewed the lease after since.
func (s *fixture) awaitLeader(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, campaign.Insistence)
	defer cancel()
	key := client.ObjectKey{Namespace: localsystem.Namespace, Name: leaseName}
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

var objectFaults = []campaign.Fault{
	{
		Kind: "Secret deleted and created again", Holds: []string{"Secrets"}, Shortest: time.Second, Longest: 5 * time.Second,
		Inject: hitting(deleteSecret),
	},
	{Kind: "Update deleted by hand", Short: true, Inject: hitting(deleteUpdate)},
	{Kind: "Workspace deleted by hand", Inject: hitting(deleteWorkspace)},
	{Kind: "namespace deleted", Inject: hitting(deleteNamespace)},
	{Kind: "clock was wrong", Short: true, Inject: hitting(moveTimes)},
}

func deleteSecret(ctx context.Context, on *target) (campaign.Heal, error) {
	victim := on.Any()
	secret := func() *corev1.Secret {
		return &corev1.Secret{
			Namespace: victim.Namespace, Name: localsystem.PassphraseSecret,
			StringData: map[string]string{localsystem.PassphraseKey: passphrase},
		}
	}
	return func(ctx context.Context) error {
		return victim.Tolerate(on.Retry(ctx, func(ctx context.Context) error { return on.Client.Create(ctx, secret()) }))
	}, on.Remove(ctx, secret())
}

// deleteUpdate deletes an Update that is running, if there is one. That cancels its operation.
func deleteUpdate(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.Hunt(ctx, hunt, func(a *campaign.App) (bool, error) {
		updates := &autov1alpha1.UpdateList{}
		if err := on.Retry(ctx, func(ctx context.Context) error {
			return on.Client.List(ctx, updates, client.InNamespace(a.Namespace))
		}); err != nil {
			return false, err
		}
		for i, update := range updates.Items {
			if !update.IsComplete() {
				return true, on.Remove(ctx, &updates.Items[i])
			}
		}
		return false, nil
	})
}

// deleteWorkspace deletes the Workspace of a Stack, which ends the agent and its operation.
func deleteWorkspace(ctx context.Context, on *target) (campaign.Heal, error) {
	victim := on.Any()
	return nil, on.Remove(ctx, &autov1alpha1.Workspace{Namespace: victim.Namespace, Name: victim.Name})
}

// deleteNamespace deletes a namespace, and so the Stack, its source and its Secret at the same time.
func deleteNamespace(ctx context.Context, on *target) (campaign.Heal, error) {
	victim := on.Living()
	if on.Missed = victim == nil; on.Missed {
		return nil, nil
	}
	victim.Evict()
	return nil, on.Remove(ctx, &corev1.Namespace{Name: victim.Namespace})
}

const century = 100 * 365 * 24 * time.Hour

// moveTimes makes an update fail, because the resources cannot record what is done to them, and then writes times into the status that are
// far from now. The Stack has to be retried nevertheless when the cause of the failure is gone. The clock of the machine is not changed:
// what matters is the times that a wrong clock leaves in the status.
func moveTimes(ctx context.Context, on *target) (campaign.Heal, error) {
	victim := on.Living()
	if on.Missed = victim == nil; on.Missed {
		return nil, nil
	}
	blocked, err := victim.CommitBlocked(ctx)
	heal := func(context.Context) error {
		var failed []error
		for _, dir := range blocked {
			failed = append(failed, os.Remove(dir))
		}
		return errors.Join(failed...)
	}
	if err != nil {
		return heal, err
	}
	by := []time.Duration{time.Hour, century, -century}[on.Random.IntN(3)]
	for deadline := time.Now().Add(5 * hunt); time.Now().Before(deadline); campaign.Wait(ctx, campaign.PollInterval) {
		moved, err := on.moveTimes(ctx, victim, time.Now().Add(by))
		if on.Missed = !moved; err != nil || moved {
			return heal, err
		}
	}
	return heal, nil
}

// moveTimes sets the times in the status of a failed Stack, and reports whether it did.
func (s *fixture) moveTimes(ctx context.Context, a *campaign.App, to time.Time) (moved bool, err error) {
	err = s.Retry(ctx, func(ctx context.Context) error {
		stack := &pulumiv1.Stack{}
		if err := s.Client.Get(ctx, a.Key(), stack); err != nil {
			return err
		}
		last := stack.Status.LastUpdate
		if last == nil || last.State != pulumiv1.StackUpdateFailed || last.Failures == 0 || stack.Status.CurrentUpdate != nil {
			return nil
		}
		before := stack.DeepCopy()
		last.LastResyncTime = metav1.NewTime(to)
		for i := range stack.Status.Conditions {
			stack.Status.Conditions[i].LastTransitionTime = metav1.NewTime(to)
		}
		err := s.Client.Status().Patch(ctx, stack, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		moved = err == nil
		return err
	})
	return moved, client.IgnoreNotFound(err)
}
