package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/tests/controlplane"
)

// readyTimeout bounds the wait for the node. A quiet machine needs a few seconds.
const readyTimeout = 90 * time.Second

// awaitNode waits until pods can be created and start: the node is ready and takes them, and the namespace "default" has its
// ServiceAccount.
func (c *Cluster) awaitNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	clientset, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	for {
		err := nodeReady(ctx, clientset)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the node: %w\nthe last lines of kubelet's log:\n%s",
				errors.Join(context.Cause(ctx), err), controlplane.Tail(c.LogPath("kubelet"), 25))
		case <-time.After(pollInterval):
		}
	}
}

func nodeReady(ctx context.Context, clientset kubernetes.Interface) error {
	node, err := clientset.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("it is not ready: %s", condition.Message)
		}
	}
	if len(node.Status.Conditions) == 0 || len(node.Spec.Taints) > 0 {
		return fmt.Errorf("it takes no pods: %v", node.Spec.Taints)
	}
	_, err = clientset.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}
