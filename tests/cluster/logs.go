package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// logLimit is how many bytes of a container's log are read.
const logLimit = 1 << 20

// Logs returns what a container has written, its first MiB; containers whose log matters write less. The container may be empty
// when the pod has only one.
func (c *Cluster) Logs(ctx context.Context, namespace, pod, container string) (string, error) {
	clientset, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return "", fmt.Errorf("create a client: %w", err)
	}
	limit := int64(logLimit)
	options := &corev1.PodLogOptions{Container: container, LimitBytes: &limit}
	content, err := clientset.CoreV1().Pods(namespace).GetLogs(pod, options).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of pod %s/%s: %w", namespace, pod, err)
	}
	return string(content), nil
}
