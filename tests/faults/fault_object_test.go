package faults_test

import (
	"context"
	"errors"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/faults/campaign"
	"github.com/stack-controller/stack-controller/tests/stage"
)

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
			ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, Name: stage.PassphraseSecret},
			StringData: map[string]string{stage.PassphraseKey: passphrase},
		}
	}
	return func(ctx context.Context) error {
		return victim.Tolerate(on.Insist(ctx, func(ctx context.Context) error { return on.Client.Create(ctx, secret()) }))
	}, on.Remove(ctx, secret())
}

// deleteUpdate deletes an Update that runs, when there is one, which cancels its operation.
func deleteUpdate(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.Hunt(ctx, hunt, func(a *campaign.App) (bool, error) {
		updates := &autov1alpha1.UpdateList{}
		if err := on.Insist(ctx, func(ctx context.Context) error {
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

// deleteWorkspace ends the agent of a Stack, with what it does.
func deleteWorkspace(ctx context.Context, on *target) (campaign.Heal, error) {
	victim := on.Any()
	return nil, on.Remove(ctx, &autov1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, Name: victim.Name}})
}

// deleteNamespace takes the Stack, its source and its Secret away at the same time.
func deleteNamespace(ctx context.Context, on *target) (campaign.Heal, error) {
	victim := on.Living()
	if on.Missed = victim == nil; on.Missed {
		return nil, nil
	}
	victim.Evict()
	return nil, on.Remove(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: victim.Namespace}})
}

const century = 100 * 365 * 24 * time.Hour

// moveTimes has an update fail, because the resources cannot note what is done to them, and then writes times into the status
// that are far from now. When the cause is gone the Stack has to be tried again all the same. The clock of the machine is left
// alone: what counts is what a wrong one leaves in the status.
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

// moveTimes sets the times in the status of a Stack that failed, and reports whether it did.
func (s *scene) moveTimes(ctx context.Context, a *campaign.App, to time.Time) (moved bool, err error) {
	err = s.Insist(ctx, func(ctx context.Context) error {
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
