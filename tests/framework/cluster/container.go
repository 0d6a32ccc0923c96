package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
)

// Container is a running container, as the machine's processes and cgroups show it.
type Container struct {
	// PID is the ID of the container's first process: the agent, or a controller.
	PID int
	// memoryGroup and processorGroup are the directories of the container's cgroups; with cgroup version 2 they are the same.
	memoryGroup, processorGroup string
	unified                     bool // cgroup version 2
}

// FindContainer finds the named container of a pod.
func FindContainer(pod *corev1.Pod, name string) (Container, error) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == name && status.ContainerID != "" {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return searchContainer(id)
		}
	}
	return Container{}, fmt.Errorf("pod %s/%s has no running container %s", pod.Namespace, pod.Name, name)
}

// searchContainer finds a container by the name of its cgroup.
func searchContainer(id string) (Container, error) {
	pids, err := Processes()
	if err != nil {
		return Container{}, err
	}
	for _, pid := range pids {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !bytes.Contains(groups, []byte("/"+id+"\n")) {
			continue // it has ended, or is not in the container
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !isFirst(status) {
			continue
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			return Container{}, fmt.Errorf("find the cgroup hierarchies: %w", err)
		}
		return containerOf(pid, string(mounts), string(groups)), nil
	}
	return Container{}, fmt.Errorf("find the first process of container %s: there is none", id)
}

// isFirst reports whether a process is the first one of its PID namespace.
func isFirst(status []byte) bool {
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "NSpid:" {
			return fields[len(fields)-1] == "1"
		}
	}
	return false
}

// containerOf returns the container with the directories of its cgroups. Each line of groups has the number, the controllers and the path.
func containerOf(pid int, mounts, groups string) Container {
	c := Container{PID: pid}
	var unified string
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		directory := filepath.Join(mountOf(mounts, fields[1]), fields[2])
		for controller := range strings.SplitSeq(fields[1], ",") {
			switch controller {
			case "memory":
				c.memoryGroup = directory
			case "cpuacct":
				c.processorGroup = directory
			case "":
				unified = directory
			}
		}
	}
	if c.memoryGroup == "" || c.processorGroup == "" {
		c.memoryGroup, c.processorGroup, c.unified = unified, unified, true
	}
	return c
}

// mountOf returns where the hierarchy with the controllers is mounted. The hierarchy without controllers is version 2.
func mountOf(mounts, controllers string) string {
	wanted, _, _ := strings.Cut(controllers, ",")
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 4:
		case fields[2] == "cgroup2" && controllers == "":
			return fields[1]
		case fields[2] == "cgroup" && controllers != "" && slices.Contains(strings.Split(fields[3], ","), wanted):
			return fields[1]
		}
	}
	return "/"
}

// CPU returns the processor time of all processes that ever ran in the container.
func (c Container) CPU() (time.Duration, error) {
	name, unit := "cpuacct.usage", time.Nanosecond
	if c.unified {
		name, unit = "cpu.stat", time.Microsecond
	}
	content, err := os.ReadFile(filepath.Join(c.processorGroup, name))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of a container: %w", err)
	}
	if c.unified {
		return time.Duration(NumberOf(content, "usage_usec")) * unit, nil
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the processor time of a container: %w", err)
	}
	return time.Duration(value) * unit, nil
}

// Memory returns the working set of the container, which the kubelet uses, and the part of it that belongs to processes.
func (c Container) Memory() (workingSet, anonymous int64, err error) {
	usageFile, anonymousField, inactiveField := "memory.usage_in_bytes", "total_rss", "total_inactive_file"
	if c.unified {
		usageFile, anonymousField, inactiveField = "memory.current", "anon", "inactive_file"
	}
	usage, err := os.ReadFile(filepath.Join(c.memoryGroup, usageFile))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of a container: %w", err)
	}
	statistics, err := os.ReadFile(filepath.Join(c.memoryGroup, "memory.stat"))
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of a container: %w", err)
	}
	total, err := strconv.ParseInt(strings.TrimSpace(string(usage)), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of a container: %w", err)
	}
	return total - NumberOf(statistics, inactiveField), NumberOf(statistics, anonymousField), nil
}

// MemoryLimit returns the limit that the kernel enforces, and the highest usage so far.
func (c Container) MemoryLimit() (limit, peak int64, err error) {
	limitFile, peakFile := "memory.limit_in_bytes", "memory.max_usage_in_bytes"
	if c.unified {
		limitFile, peakFile = "memory.max", "memory.peak"
	}
	for name, value := range map[string]*int64{limitFile: &limit, peakFile: &peak} {
		content, err := os.ReadFile(filepath.Join(c.memoryGroup, name))
		if err != nil {
			return 0, 0, fmt.Errorf("read the memory limit of a container: %w", err)
		}
		if *value, err = strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err != nil {
			return 0, 0, fmt.Errorf("read the memory limit of a container: %w", err)
		}
	}
	return limit, peak, nil
}

// Processes returns the IDs of all processes of the machine.
func Processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// NumberOf returns the number in the line that begins with the name, in the format of the kernel's files, or 0.
func NumberOf(content []byte, name string) int64 {
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			value, _ := strconv.ParseInt(fields[1], 10, 64) // 0 if the kernel's line has another format
			return value
		}
	}
	return 0
}

// startOnNode starts a server that works with containers or their mounts, in the node's mount namespace.
func (c *Cluster) startOnNode(ctx context.Context, server controlplane.Server) (*supervise.Process, error) {
	server.Path, server.Args = c.node.enterMounts(server.Path, server.Args...)
	server.Env = append(server.Env, "PATH="+searchPath())
	return c.StartServer(ctx, server)
}

// NodeCommand returns a command that runs in all namespaces of the node, for example ctr or iptables. (Command enters only the network
// namespace, so its program sees all files of the machine.)
func (c *Cluster) NodeCommand(ctx context.Context, path string, args ...string) *exec.Cmd {
	namespaces := []string{"--net=" + c.node.namespace("net"), "--mount=" + c.node.namespace("mnt"), "--wd=/", "--", path}
	return exec.CommandContext(ctx, nsenter, append(namespaces, args...)...)
}

// runOnNode runs a program in all namespaces of the node and waits for its end. The error of a failed program contains its standard error.
func (c *Cluster) runOnNode(ctx context.Context, input io.Reader, path string, args ...string) error {
	_, err := c.outputOnNode(ctx, input, path, args...)
	return err
}

// outputOnNode works like runOnNode and returns the standard output.
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

// searchPath returns PATH with the directories of programs for administrators, which may be missing even from root's PATH.
func searchPath() string { return os.Getenv("PATH") + ":/usr/sbin:/sbin" }

// logLimit is how many bytes of a container's log are returned.
const logLimit = 1 << 20

// Logs returns the first MiB of a container's log; containers whose log matters write less. The container may be empty if the pod has only
// one.
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
