package podfaults_test

import (
	"context"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

var podFaults = []fault{
	{kind: "agent's container killed", inject: killAgent},
	{kind: "pulumi killed", inject: killPulumi},
	{kind: "workspace pod deleted", inject: deletePod},
	{kind: "workspace pod deleted by force", inject: forcePod},
}

// killAgent kills the first process of the container, with which all others end.
func killAgent(ctx context.Context, on *target) (func(context.Context) error, error) {
	on.killIn(ctx, "")
	return nil, nil
}

func killPulumi(ctx context.Context, on *target) (func(context.Context) error, error) {
	on.killIn(ctx, "pulumi")
	return nil, nil
}

// killIn kills the process of the victim as soon as there is one.
func (t *target) killIn(ctx context.Context, name string) {
	t.victim.killed()
	for deadline := time.Now().Add(hunt); time.Now().Before(deadline); wait(ctx, pollInterval/2) {
		if id := t.victim.container(ctx); id != "" && t.signal(id, name, syscall.SIGKILL) > 0 {
			return
		}
	}
	t.missed = true
}

// container returns the ID of the container in which pulumi runs, empty when there is none.
func (a *app) container(ctx context.Context) string {
	pod := a.pod(ctx)
	if pod == nil {
		return ""
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == autov1alpha1.PulumiContainerName && status.State.Running != nil {
			return containerID(status.ContainerID)
		}
	}
	return ""
}

func deletePod(ctx context.Context, on *target) (func(context.Context) error, error) {
	return nil, on.removePod(ctx)
}

func forcePod(ctx context.Context, on *target) (func(context.Context) error, error) {
	on.victim.killed()
	return nil, on.removePod(ctx, &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}

// removePod deletes the pod of the victim as soon as there is one.
func (t *target) removePod(ctx context.Context, options ...client.DeleteOption) error {
	for deadline := time.Now().Add(hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		if pod := t.victim.pod(ctx); pod != nil {
			return client.IgnoreNotFound(t.system.Client.Delete(ctx, pod, options...))
		}
	}
	t.missed = true
	return nil
}

// removeAllPods deletes the pods of all workspaces by force.
func (t *target) removeAllPods(ctx context.Context) error {
	for _, a := range t.apps {
		pods := &corev1.PodList{}
		if err := t.system.Client.List(ctx, pods, client.InNamespace(a.Namespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			err := t.system.Client.Delete(ctx, &pods.Items[i], &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			if client.IgnoreNotFound(err) != nil {
				return err
			}
		}
	}
	return nil
}
