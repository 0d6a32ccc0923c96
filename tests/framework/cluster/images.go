package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// imageTimeout bounds the time until a loaded image is available to the kubelet.
const imageTimeout = 20 * time.Second

// LoadImage loads the images of a tarball (docker archive or OCI layout) into the node, and returns when pods can use them. The
// imagePullPolicy of these pods must be IfNotPresent or Never.
func (c *Cluster) LoadImage(ctx context.Context, path string) error {
	tarball, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load an image: %w", err)
	}
	defer func() { _ = tarball.Close() }()
	begin := time.Now()
	output, err := c.containers(ctx, tarball, "images", "import", "--local", "-")
	if err != nil {
		return fmt.Errorf("load the image %s: %w", path, err)
	}
	var names []string
	for line := range strings.Lines(output) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "unpacking" {
			names = append(names, fields[1])
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("load the image %s: it has no name: %s", path, output)
	}
	for _, name := range names {
		if err := c.awaitImage(ctx, name); err != nil {
			return err
		}
		c.logln(fmt.Sprintf("loaded %s in %s", name, time.Since(begin).Round(100*time.Millisecond)))
	}
	return nil
}

// awaitImage waits until containerd's CRI plugin, which the kubelet uses, knows the image: the plugin then adds a label to it.
func (c *Cluster) awaitImage(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, imageTimeout, errors.New("containerd does not manage it"))
	defer cancel()
	filter := fmt.Sprintf(`name==%q,labels."io.cri-containerd.image"==managed`, name)
	for {
		output, err := c.containers(ctx, nil, "images", "list", "--quiet", filter)
		if err == nil && strings.TrimSpace(output) != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the image %s: %w", name, errors.Join(context.Cause(ctx), err))
		case <-time.After(pollInterval):
		}
	}
}

// RemoveImage removes an image from the node. Running containers continue.
func (c *Cluster) RemoveImage(ctx context.Context, name string) error {
	if _, err := c.containers(ctx, nil, "images", "remove", "--sync", name); err != nil {
		return fmt.Errorf("remove the image %s: %w", name, err)
	}
	return nil
}

// TagImage gives an image of the node another name, and returns when pods can use it. name is the full name that LoadImage logs.
func (c *Cluster) TagImage(ctx context.Context, name, other string) error {
	if _, err := c.containers(ctx, nil, "images", "tag", name, other); err != nil {
		return fmt.Errorf("tag the image %s: %w", name, err)
	}
	return c.awaitImage(ctx, other)
}

// KillContainer kills all processes of a container with SIGKILL, as the kernel does when memory runs out. The ID is the container ID in the
// status of its pod.
func (c *Cluster) KillContainer(ctx context.Context, id string) error {
	_, err := c.containers(ctx, nil, "tasks", "kill", "--signal=SIGKILL", strings.TrimPrefix(id, "containerd://"))
	if err != nil {
		return fmt.Errorf("kill container %s: %w", id, err)
	}
	return nil
}

// containers runs containerd's client in the namespace of Kubernetes.
func (c *Cluster) containers(ctx context.Context, input io.Reader, args ...string) (string, error) {
	return c.outputOnNode(ctx, input, c.ctr, append([]string{"--namespace=k8s.io"}, args...)...)
}
