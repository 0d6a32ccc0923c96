package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/cluster"
)

// restarts knows pods that must stay as they are, by namespace and name.
type restarts map[types.NamespacedName]identity

// identity changes when a pod is replaced or one of its containers is started again.
type identity struct {
	uid      types.UID
	restarts int32
}

func identityOf(pod *corev1.Pod) identity {
	id := identity{uid: pod.UID}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		id.restarts += status.RestartCount
	}
	return id
}

// note adds pods.
func (r restarts) note(pods []corev1.Pod) {
	for i := range pods {
		r[client.ObjectKeyFromObject(&pods[i])] = identityOf(&pods[i])
	}
}

// changed returns what happened to the pods, sorted.
func (r restarts) changed(pods []corev1.Pod) []string {
	now := restarts{}
	now.note(pods)
	var changes []string
	for key, before := range r {
		switch after, exists := now[key]; {
		case !exists:
			changes = append(changes, fmt.Sprintf("pod %s is gone", key))
		case after.uid != before.uid:
			changes = append(changes, fmt.Sprintf("pod %s was replaced", key))
		case after.restarts != before.restarts:
			changes = append(changes, fmt.Sprintf("containers of pod %s were started again %d times", key, after.restarts-before.restarts))
		}
	}
	slices.Sort(changes)
	return changes
}

// notePods adds the pods of a namespace, and those of the controllers, to those that must not be restarted.
func (b *podBench) notePods(ctx context.Context, namespaces ...string) error {
	for _, namespace := range append(namespaces, cluster.FluxNamespace) {
		pods := &corev1.PodList{}
		if err := b.system.Client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		b.pods.note(pods.Items)
	}
	return nil
}

// unrestarted fails when a pod was restarted while it was measured.
func (b *podBench) unrestarted(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := b.system.Client.List(ctx, pods); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	if changes := b.pods.changed(pods.Items); len(changes) > 0 {
		return fmt.Errorf("pods did not stay as they were: %s", strings.Join(changes, "; "))
	}
	fmt.Fprintf(b.out, "\n%d pods were watched over all measurements: none was replaced, no container was started again.\n", len(b.pods))
	return nil
}
