package podfaults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// patience bounds the wait for the end of a fault.
	patience = 2 * time.Minute
	// maxConvergence bounds how long it may take until everything is in its expected state. A container that was killed again and again is
	// restarted only after some minutes.
	maxConvergence = 4 * time.Minute
	// work is how long the test provider takes to create or update a resource. It is about as long as everything else in an update, so that
	// half of the faults hit while a resource changes.
	work = 2 * time.Second
)

// fixture is the running system, with the state that the faults need.
type fixture struct {
	*campaign.Environment
	system   *podsystem.System
	observer *observer
	phases   phases
	// next means that the controller has the other image.
	next bool
}

func newFixture(system *podsystem.System) *fixture {
	// The name of the cgroup in which all pods of the cluster are.
	group := fmt.Sprintf("/stack-controller-%d/", system.Cluster.Supervisor().PID())
	s := &fixture{system: system, observer: &observer{group: group}, phases: phases{begun: map[types.UID]int{}, lost: map[string]int{}}}
	s.Environment = &campaign.Environment{
		Apps: system.Apps, System: s, Number: 1, Work: work, Patience: maxConvergence, MaxConvergence: maxConvergence,
		Journals: filepath.Join(system.StateDir(), "journals"), JournalsInside: "/state/journals",
	}
	return s
}

// controllerPods returns the pods of stack-controller that are not being deleted.
func (s *fixture) controllerPods(ctx context.Context) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := s.Client.List(ctx, list, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podsystem.ControllerName})
	var found []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && len(pod.Status.ContainerStatuses) > 0 {
			found = append(found, pod)
		}
	}
	return found, err
}

// pod returns the pod of the app's workspace, nil when there is none.
func (s *fixture) pod(ctx context.Context, a *campaign.App) *corev1.Pod {
	pod := &corev1.Pod{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: podName(a)}, pod); err != nil {
		return nil
	}
	return pod
}

func podName(a *campaign.App) string { return a.Name + "-workspace-0" }

// container returns the ID of the container in which pulumi runs, empty when there is none.
func (s *fixture) container(ctx context.Context, a *campaign.App) string {
	pod := s.pod(ctx, a)
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

// containerID returns the ID in the status of a pod without its prefix.
func containerID(status string) string { return strings.TrimPrefix(status, "containerd://") }

// signal sends a signal to all processes of the container with the name. Without a name, it sends the signal to the first process of the
// container, which is the agent or the controller. It returns the number of processes.
func (s *fixture) signal(id, name string, signal syscall.Signal) (count int) {
	own := s.observer.in(id)
	isOwn := map[int]bool{}
	for _, p := range own {
		isOwn[p.pid] = true
	}
	for _, p := range own {
		if (name != "" && p.name == name || name == "" && !isOwn[p.parent]) && syscall.Kill(p.pid, signal) == nil {
			count++
		}
	}
	return count
}

// Prepare removes the namespaces of deleted Stacks. It also replaces pods whose containers were restarted, because kubelet would restart
// them with a growing delay.
func (s *fixture) Prepare(ctx context.Context, apps []*campaign.App) error {
	pods, err := s.controllerPods(ctx)
	if err != nil {
		return err
	}
	for _, a := range apps {
		if a == nil {
			continue
		}
		if a.IsDeleted() {
			namespace := &corev1.Namespace{Name: a.Namespace}
			if err := s.Remove(ctx, namespace); err != nil {
				return err
			}
		} else if pod := s.pod(ctx, a); pod != nil {
			pods = append(pods, *pod)
		}
	}
	replaced := false
	for i, pod := range pods {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount == 0 {
			continue
		}
		if err := s.Remove(ctx, &pods[i]); err != nil {
			return err
		}
		replaced = true
	}
	if !replaced {
		return nil
	}
	campaign.Wait(ctx, 10*campaign.PollInterval)
	return s.system.AwaitController(ctx)
}

// Unconverged expects a Workspace that is Ready and has a pod, or neither. When the Stack is gone, it expects that the Workspace, the pod
// and all Updates are gone.
func (s *fixture) Unconverged(ctx context.Context, a *campaign.App, gone bool) error {
	workspace, pod := &autov1alpha1.Workspace{}, s.pod(ctx, a)
	err := s.Client.Get(ctx, a.Key(), workspace)
	if gone {
		updates := &autov1alpha1.UpdateList{}
		if err := s.Client.List(ctx, updates, client.InNamespace(a.Namespace)); err != nil {
			return err
		}
		if !apierrors.IsNotFound(err) || pod != nil || len(updates.Items) > 0 {
			return campaign.NotConverged("Workspace (%v), pod (%t) or Updates (%d) are left", err, pod != nil, len(updates.Items))
		}
		return nil
	}
	switch {
	case apierrors.IsNotFound(err) && pod == nil:
		return nil // the Workspace was deleted, and is created again when the Stack needs it
	case err != nil:
		return fmt.Errorf("its pod is there: %t: %w", pod != nil, err)
	case !conditions.IsReady(workspace) || workspace.Status.ObservedGeneration != workspace.Generation || workspace.DeletionTimestamp != nil:
		return campaign.NotConverged("the workspace is not ready: %v", workspace.Status.Conditions)
	case pod == nil || pod.DeletionTimestamp != nil:
		return campaign.NotConverged("the workspace has no pod")
	}
	return nil
}

// LeftBehind returns an error if there are locks in the backend or pulumi processes.
func (s *fixture) LeftBehind(apps []*campaign.App) error {
	for _, a := range apps {
		locks, _ := filepath.Glob(filepath.Join(s.system.StateDir(), ".pulumi", "locks", "*", a.Name, "*", "*")) // the pattern is fine
		if len(locks) > 0 {
			return campaign.NotConverged("locks in the backend: %v", locks)
		}
		if left := s.observer.leftOver(podName(a)); len(left) > 0 {
			return campaign.NotConverged("processes of %s: %v", a.Name, left)
		}
	}
	return nil
}

// Works reports whether a pulumi process runs in the Stack's pod.
func (s *fixture) Works(a *campaign.App) bool { return len(s.observer.leftOver(podName(a))) > 0 }

// Pulumi runs the CLI in the Stack's pod, as the documentation describes.
func (s *fixture) Pulumi(ctx context.Context, a *campaign.App, args ...string) error {
	script := "export PULUMI_CONFIG_PASSPHRASE='correct horse battery staple'\npulumi " + strings.Join(args, " ") + " --non-interactive"
	output, err := s.system.Cluster.Kubectl(ctx, "exec", "--namespace="+a.Namespace, podName(a),
		"--container="+autov1alpha1.PulumiContainerName, "--", "sh", "-c", script)
	if err != nil {
		return fmt.Errorf("help as the documentation says: %w\n%s", err, output)
	}
	return nil
}

// CheckInvariants returns an error if several pulumi processes worked on one Stack at the same time.
func (s *fixture) CheckInvariants() error { return s.observer.take() }

// Explain returns the objects of the app as YAML.
func (s *fixture) Explain(ctx context.Context, a *campaign.App) string {
	objects, err := s.system.Cluster.Kubectl(ctx, "get", "stacks,updates,workspaces,statefulsets,pods", "--output=yaml", "--namespace="+a.Namespace)
	return fmt.Sprintf("%v\n%s\n", err, objects)
}

// KeepLogs writes the whole logs to the directory in the environment variable FAULTS_LOGS, if it is set.
func (s *fixture) KeepLogs(occasion string) {
	dir := os.Getenv("FAULTS_LOGS")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, args := range [][]string{{}, {"--previous"}} {
		log, err := s.system.Cluster.Kubectl(ctx, append(args, "logs", "deployment/"+podsystem.ControllerName,
			"--namespace="+cluster.FluxNamespace, "--tail=-1")...)
		if err == nil {
			_ = os.WriteFile(filepath.Join(dir, "controller"+occasion+strings.Join(args, "")+".log"), []byte(log), 0o600)
		}
	}
}

// observer reads the processes of all pods from outside.
type observer struct {
	group string // part of the path of every cgroup of a pod

	mu       sync.Mutex
	seen     int // how often a Stack's pulumi was seen to work
	problems []error
}

// process is a process in a container.
type process struct {
	pid, parent int
	name        string
	cgroups     string // the content of /proc/PID/cgroup
}

// processes returns all processes of pods, except for zombies.
func (o *observer) processes() []process {
	pids, _ := procfs.IDs() // none when /proc cannot be read
	var found []process
	for _, pid := range pids {
		cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !bytes.Contains(cgroups, []byte(o.group)) {
			continue
		}
		if stat, err := procfs.ReadStat(pid); err == nil && !stat.Ended() {
			found = append(found, process{pid: pid, parent: stat.Parent, name: stat.Name, cgroups: string(cgroups)})
		}
	}
	return found
}

// in returns the processes of a container, or of a pod, by its ID.
func (o *observer) in(id string) []process {
	return slices.DeleteFunc(o.processes(), func(p process) bool { return !strings.Contains(p.cgroups, id) })
}

// providerName is the name of the test provider as the kernel shortens it.
const providerName = "pulumi-resource"

// run checks until the context ends whether two pulumi processes work on the resources of one Stack: each of them would have a provider. A
// process that only waits for the other's lock has no provider. A preview takes no lock and changes nothing: it may run beside the commands with
// which the test helps a Stack, as somebody would by hand.
func (o *observer) run(ctx context.Context) {
	for campaign.Wait(ctx, campaign.PollInterval/2) {
		working := map[string][]int{}
		all := o.processes()
		for _, p := range all {
			if !strings.HasPrefix(p.name, providerName) {
				continue
			}
			isPulumi := slices.ContainsFunc(all, func(q process) bool { return q.pid == p.parent && q.name == "pulumi" })
			if name := p.hostname(); isPulumi && !isPreview(p.parent) && name != "" && !slices.Contains(working[name], p.parent) {
				working[name] = append(working[name], p.parent)
			}
		}
		o.mu.Lock()
		o.seen += len(working)
		for name, pids := range working {
			if len(pids) > 1 {
				o.problems = append(o.problems, fmt.Errorf("%s: two processes of pulumi worked at once: %v at %s",
					name, pids, time.Now().Format(time.TimeOnly)))
			}
		}
		o.mu.Unlock()
	}
}

// isPreview reports whether the process is a pulumi that only makes a preview.
func isPreview(pid int) bool {
	arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
	return bytes.Contains(arguments, []byte("preview"))
}

// worked returns how often pulumi was seen to work.
func (o *observer) worked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// take returns the problems that were found since the last call.
func (o *observer) take() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	problems := o.problems
	o.problems = nil
	if len(problems) > maxProblems {
		problems = problems[:maxProblems]
	}
	return errors.Join(problems...)
}

// maxProblems bounds how many problems take returns.
const maxProblems = 5

// hostname returns the name of the process's pod, or "" when the process has ended.
func (p process) hostname() string {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/hostname", p.pid)) // it may have ended
	return strings.TrimSpace(string(content))
}

// leftOver returns the processes of pulumi and its plugins in pods with the name.
func (o *observer) leftOver(pod string) []string {
	var found []string
	for _, p := range o.processes() {
		if strings.HasPrefix(p.name, "pulumi") && p.hostname() == pod {
			found = append(found, fmt.Sprintf("%d %s", p.pid, p.name))
		}
	}
	return found
}
