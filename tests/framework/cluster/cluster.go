// Package cluster runs a real Kubernetes cluster with one node that can run pods: package controlplane's etcd, kube-apiserver and
// kube-controller-manager, together with kube-scheduler, containerd, kubelet, kube-proxy and CoreDNS.
//
// The cluster has its own network and mount namespaces and its own cgroup. Its addresses and mounts are not visible on the machine, several
// clusters can run at once, and when the processes end nothing is left to clean up. As in controlplane, a supervisor ends all processes,
// including containers, however the program that called Start ends.
//
// It needs root and a few Debian packages; see Missing. It needs no Internet: images come from files (see LoadImage).
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
)

// Options selects what Start starts.
type Options struct {
	// Log gets a line per step, including the builds of missing binaries. Nil discards the lines.
	Log io.Writer
	// Dir holds all files, see controlplane.Options. It must not be below /run, /var/lib or /var/log.
	Dir string
	// CRDs are definitions to install, see controlplane.Options.
	CRDs []string
	// Images are tarballs of images to load while the servers start; see LoadImage.
	Images []string
}

// Cluster is a running cluster. Config, Kubectl, Dial, Listen, Command and other methods are those of the control plane.
type Cluster struct {
	*controlplane.ControlPlane
	// NodeAddress is the IP address of the node. What the program serves with Listen is reachable for pods at this address.
	NodeAddress string

	options Options
	// ctr is the path of containerd's client.
	ctr     string
	node    *node
	kubelet *supervise.Process
}

// Start starts a cluster and returns when a pod can run. If it fails, it stops what it started. The first start on a machine builds the
// binaries, which takes minutes.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Log == nil {
		options.Log = io.Discard
	}
	options.Log = &lineWriter{out: options.Log}
	if err := Missing(); err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	c := &Cluster{options: options, NodeAddress: nodeAddress}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start the cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	begin := time.Now()
	_, err := controlplane.Start(ctx, controlplane.Options{
		Log:                   c.options.Log,
		Dir:                   c.options.Dir,
		CRDs:                  c.options.CRDs,
		Users:                 users(),
		WithControllerManager: true,
		NewNetwork: func(ctx context.Context, control *controlplane.ControlPlane) (controlplane.Network, error) {
			c.ControlPlane = control
			err := c.startNode(ctx)
			return c.node, err
		},
		// This takes some seconds and does not need the control plane.
		Alongside: c.startContainerd,
	})
	if err != nil {
		return err
	}
	servers, inGroup := errgroup.WithContext(ctx)
	servers.Go(func() error { return c.startScheduler(inGroup) })
	servers.Go(func() error { return c.startProxy(inGroup) })
	servers.Go(func() error { return c.startDNS(inGroup) })
	servers.Go(func() error { return c.startKubelet(inGroup) })
	if err := servers.Wait(); err != nil {
		return err
	}
	if err := c.awaitNode(ctx); err != nil {
		return err
	}
	c.logln(fmt.Sprintf("the cluster is up after %s", time.Since(begin).Round(100*time.Millisecond)))
	return nil
}

// Stop ends all processes, including containers, and removes all files. It may be called more than once, and on a nil Cluster.
func (c *Cluster) Stop() error {
	if c == nil {
		return nil
	}
	return errors.Join(c.ControlPlane.Stop(), c.node.close())
}

func (c *Cluster) logln(line string) { _, _ = fmt.Fprintln(c.options.Log, line) }

// lineWriter serializes the writes of several goroutines.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(p)
}

// readyTimeout bounds the wait for the node. On a quiet machine it takes a few seconds.
const readyTimeout = 90 * time.Second

// awaitNode waits until pods can be created and can start: the node is ready and schedulable, and the namespace "default" has its
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
