package podfaults_test

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

var objectFaults = []fault{
	{kind: "StatefulSet deleted", inject: deleteObject(func(a *app) client.Object {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: a.Name + "-workspace"}}
	})},
	{kind: "StatefulSet deleted, its pod left", inject: deleteObject(func(a *app) client.Object {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: a.Name + "-workspace"}}
	}, client.PropagationPolicy(metav1.DeletePropagationOrphan))},
	{kind: "Service deleted", inject: deleteObject(func(a *app) client.Object {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: a.Name + "-workspace"}}
	})},
	{kind: "Secret of the workspace deleted", slow: true, inject: deleteObject(func(a *app) client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: a.Name + "-workspace-rpc"}}
	})},
	{kind: "Workspace deleted", inject: deleteObject(func(a *app) client.Object {
		return &autov1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	})},
	{kind: "Update deleted", inject: deleteUpdate},
}

// deleteObject deletes one of the victim's objects by hand.
func deleteObject(object func(*app) client.Object, options ...client.DeleteOption) func(context.Context, *target) (func(context.Context) error, error) {
	return func(ctx context.Context, on *target) (func(context.Context) error, error) {
		doomed := object(on.victim)
		doomed.SetNamespace(on.victim.Namespace)
		for deadline := time.Now().Add(hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
			if err := on.system.Client.Delete(ctx, doomed, options...); client.IgnoreNotFound(err) != nil {
				return nil, err
			} else if err == nil {
				return nil, nil
			}
		}
		on.missed = true
		return nil, nil
	}
}

// deleteUpdate deletes the Update of the victim that runs, which cancels its operation.
func deleteUpdate(ctx context.Context, on *target) (func(context.Context) error, error) {
	for deadline := time.Now().Add(hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		updates := &autov1alpha1.UpdateList{}
		if err := on.system.Client.List(ctx, updates, client.InNamespace(on.victim.Namespace)); err != nil {
			return nil, err
		}
		for i, update := range updates.Items {
			if !update.IsComplete() {
				return nil, client.IgnoreNotFound(on.system.Client.Delete(ctx, &updates.Items[i]))
			}
		}
	}
	on.missed = true
	return nil, nil
}
