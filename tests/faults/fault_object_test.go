package faults_test

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/stage"
)

var objectFaults = []fault{
	{
		kind: "Secret deleted and created again", holds: []string{"Secrets"}, shortest: time.Second, longest: 5 * time.Second,
		inject: deleteSecret,
	},
	{kind: "Update deleted by hand", short: true, mayMiss: true, inject: deleteUpdate},
	{kind: "Workspace deleted by hand", inject: deleteWorkspace},
	{kind: "namespace deleted", mayMiss: true, inject: deleteNamespace},
}

func deleteSecret(ctx context.Context, on *target) (func(context.Context) error, error) {
	victim := on.victim()
	secret := func() *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, Name: stage.PassphraseSecret},
			StringData: map[string]string{stage.PassphraseKey: passphrase},
		}
	}
	return func(ctx context.Context) error {
		return victim.tolerate(on.insist(ctx, func(ctx context.Context) error { return on.system.Client.Create(ctx, secret()) }))
	}, on.remove(ctx, secret())
}

// deleteUpdate deletes an Update that runs, when there is one, which cancels its operation.
func deleteUpdate(ctx context.Context, on *target) (func(context.Context) error, error) {
	for deadline := time.Now().Add(hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		updates := &autov1alpha1.UpdateList{}
		if err := on.insist(ctx, func(ctx context.Context) error { return on.system.Client.List(ctx, updates) }); err != nil {
			return nil, err
		}
		var running []*autov1alpha1.Update
		for i, update := range updates.Items {
			if !update.IsComplete() && on.app(update.Namespace) != nil {
				running = append(running, &updates.Items[i])
			}
		}
		if len(running) == 0 {
			continue
		}
		update := running[on.random.IntN(len(running))]
		on.hit = true
		return nil, on.remove(ctx, update)
	}
	return nil, nil
}

// deleteWorkspace ends the agent of a Stack, with what it does.
func deleteWorkspace(ctx context.Context, on *target) (func(context.Context) error, error) {
	victim := on.victim()
	return nil, on.remove(ctx, &autov1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, Name: victim.Name}})
}

// app returns the app of a namespace, nil when it is none of the target's.
func (t *target) app(namespace string) *app {
	for _, a := range t.apps {
		if a.Namespace == namespace {
			return a
		}
	}
	return nil
}

// remove deletes an object that may be gone already.
func (t *target) remove(ctx context.Context, object client.Object) error {
	err := t.insist(ctx, func(ctx context.Context) error { return t.system.Client.Delete(ctx, object) })
	return client.IgnoreNotFound(err)
}
