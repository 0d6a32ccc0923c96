package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/cluster/netns"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// nodeName is the name of the only node.
	nodeName = "node"
	// The addresses are from a range for benchmarks, like the control plane's addresses for services. Every cluster has the same addresses.
	nodeAddress = "198.18.1.1"
	podRange    = "198.18.4.0/22"

	pollInterval = 25 * time.Millisecond
	// nodeTimeout bounds the setup of the namespaces, which takes milliseconds.
	nodeTimeout = 20 * time.Second
)

//go:embed node.sh
var nodeScript string

// node is the environment of a cluster's servers: a network namespace and a mount namespace, which a process that does nothing else keeps
// alive, and a cgroup for the pods.
type node struct {
	*netns.Namespace
	process *supervise.Process
	cgroup  string
}

// startNode creates the namespaces and the cgroup.
func (c *Cluster) startNode(ctx context.Context) error {
	cache, err := tools.CacheDir()
	if err != nil {
		return err
	}
	if err := checkVisible(c.Dir, cache); err != nil {
		return err
	}
	dir := filepath.Join(c.Dir, "node")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("create the node's directory: %w", err)
	}
	process, err := c.Supervisor().Run(supervise.Command{
		Name: "node",
		Path: unshare,
		Args: []string{"--net", "--mount", "/bin/sh", "-c", nodeScript, "node.sh", c.Dir, nodeAddress, controlplane.ServiceRange},
		Env:  []string{"PATH=" + searchPath()},
		Log:  c.LogPath("node"),
	})
	if err != nil {
		return err
	}
	if err := awaitFile(ctx, filepath.Join(dir, "ready"), process); err != nil {
		return fmt.Errorf("set up the node: %w\n%s", err, controlplane.Tail(c.LogPath("node"), 10))
	}
	c.node = &node{process: process, cgroup: "stack-controller-" + strconv.Itoa(c.Supervisor().PID())}
	if c.node.Namespace, err = netns.Open(c.node.namespace("net")); err != nil {
		return err
	}
	c.node.ResolveWith(net.JoinHostPort(nodeAddress, "53"))
	return c.createCgroup()
}

// createCgroup creates the cgroup that holds the pods, in all hierarchies.
func (c *Cluster) createCgroup() error {
	if err := c.Supervisor().EndCgroupAtEnd(c.node.cgroup); err != nil {
		return err
	}
	paths, err := leftovers.CgroupPaths(c.node.cgroup)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("create the cgroup of the pods: %w", err)
		}
	}
	return nil
}

// awaitFile waits until the process has written the file.
func awaitFile(ctx context.Context, path string, process *supervise.Process) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-process.Done():
			return errors.New(process.Status())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// Address returns the node's IP address.
func (n *node) Address() string { return nodeAddress }

// Enter returns a command that runs the program in the network namespace. Unlike "ip netns exec", nsenter does not change /sys.
func (n *node) Enter(path string, args []string) (string, []string) {
	return nsenter, append([]string{"--net=" + n.namespace("net"), "--", path}, args...)
}

// enterMounts returns a command that runs the program in the mount namespace.
func (n *node) enterMounts(path string, args ...string) (string, []string) {
	return nsenter, append([]string{"--mount=" + n.namespace("mnt"), "--wd=/", "--", path}, args...)
}

func (n *node) namespace(kind string) string {
	return filepath.Join("/proc", strconv.Itoa(n.process.PID()), "ns", kind)
}

// SuspendKubelet stops the kubelet's process, as on a node that hangs or has lost its network. After 50 seconds kube-controller-manager
// marks the node as lost. Containers continue to run, but nothing reports their state.
func (c *Cluster) SuspendKubelet() error { return c.kubelet.Signal(syscall.SIGSTOP) }

// ResumeKubelet ends the effect of SuspendKubelet. It returns when the node is ready.
func (c *Cluster) ResumeKubelet(ctx context.Context) error {
	if err := c.kubelet.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	return c.awaitNode(ctx)
}

func (n *node) close() error {
	if n == nil || n.Namespace == nil {
		return nil
	}
	if err := n.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
