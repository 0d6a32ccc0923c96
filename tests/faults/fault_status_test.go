package faults_test

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// The clock of the machine is left alone: what counts is what a wrong one leaves in the status.
var statusFaults = []fault{
	{kind: "clock was wrong", holds: []string{"Secrets"}, mayMiss: true, inject: moveTimes},
}

const century = 100 * 365 * 24 * time.Hour

// moveTimes has an update fail, because of a passphrase that is wrong for a moment, and then writes times into the status that are
// far from now. The Stack has to be tried again all the same.
func moveTimes(ctx context.Context, on *target) (func(context.Context) error, error) {
	victim := on.victim()
	if victim.isDeleted() {
		return nil, nil
	}
	heal := func(ctx context.Context) error { return victim.setPassphrase(ctx, passphrase) }
	if err := victim.setPassphrase(ctx, "wrong"); err != nil {
		return heal, err
	}
	if err := victim.tolerate(victim.commit(ctx, on.random)); err != nil {
		return heal, err
	}
	by := []time.Duration{time.Hour, century, -century}[on.random.IntN(3)]
	for deadline := time.Now().Add(3 * hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		moved, err := victim.moveTimes(ctx, time.Now().Add(by))
		if err != nil || moved {
			on.hit = moved
			return heal, err
		}
	}
	return heal, nil
}

// moveTimes sets the times in the status of a Stack that failed, and tells whether it did.
func (a *app) moveTimes(ctx context.Context, to time.Time) (moved bool, err error) {
	err = a.scene.insist(ctx, func(ctx context.Context) error {
		stack := &pulumiv1.Stack{}
		if err := a.scene.system.Client.Get(ctx, a.Key(), stack); err != nil {
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
		err := a.scene.system.Client.Status().Patch(ctx, stack, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		moved = err == nil
		return err
	})
	return moved, client.IgnoreNotFound(err)
}

// setPassphrase changes the Secret that the Stack uses, or creates it.
func (a *app) setPassphrase(ctx context.Context, value string) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: stage.PassphraseSecret}}
	return a.tolerate(a.scene.insist(ctx, func(ctx context.Context) error {
		err := a.scene.system.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		secret.Data = map[string][]byte{stage.PassphraseKey: []byte(value)}
		if err != nil {
			return a.scene.system.Client.Create(ctx, secret)
		}
		return a.scene.system.Client.Update(ctx, secret)
	}))
}
