package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/supervise"
)

// startOnNode starts a server that works with containers or their mounts.
func (c *Cluster) startOnNode(ctx context.Context, server controlplane.Server) (*supervise.Process, error) {
	server.Path, server.Args = c.node.enterMounts(server.Path, server.Args...)
	server.Env = append(server.Env, "PATH="+searchPath())
	return c.StartServer(ctx, server)
}

// NodeCommand is a program that will run in all namespaces of the node, for example ctr or iptables. (Command enters only that
// of the network, so the program sees all files of the machine.)
func (c *Cluster) NodeCommand(ctx context.Context, path string, args ...string) *exec.Cmd {
	namespaces := []string{"--net=" + c.node.namespace("net"), "--mount=" + c.node.namespace("mnt"), "--wd=/", "--", path}
	return exec.CommandContext(ctx, nsenter, append(namespaces, args...)...)
}

// runOnNode runs a program in all namespaces of the node to its end. The error of one that fails has its output.
func (c *Cluster) runOnNode(ctx context.Context, input io.Reader, path string, args ...string) error {
	_, err := c.outputOnNode(ctx, input, path, args...)
	return err
}

// outputOnNode is runOnNode that returns the standard output.
func (c *Cluster) outputOnNode(ctx context.Context, input io.Reader, path string, args ...string) (string, error) {
	cmd := c.NodeCommand(ctx, path, args...)
	cmd.Env = []string{"PATH=" + searchPath()}
	cmd.Stdin = input
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// searchPath is the PATH with the directories of programs for administrators, which even root's may lack.
func searchPath() string { return os.Getenv("PATH") + ":/usr/sbin:/sbin" }
