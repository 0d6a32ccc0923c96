package podfaults_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

var controllerFaults = []fault{
	{kind: "controller killed (SIGKILL)", inject: signalController(syscall.SIGKILL)},
	{kind: "controller stopped (SIGTERM)", inject: signalController(syscall.SIGTERM)},
	{kind: "controller's pod deleted", inject: deleteController},
	{kind: "controller upgraded", shortest: 0, longest: 0, inject: upgradeController},
}

// signalController sends a signal to the process. kubelet starts the container again.
func signalController(signal syscall.Signal) func(context.Context, *target) (func(context.Context) error, error) {
	return func(ctx context.Context, on *target) (func(context.Context) error, error) {
		pods, err := on.controllerPods(ctx)
		if err != nil {
			return nil, err
		}
		on.missed = true
		for _, pod := range pods {
			for _, status := range pod.Status.ContainerStatuses {
				if id := containerID(status.ContainerID); id != "" && status.State.Running != nil {
					on.missed = on.signal(id, "", signal) == 0 && on.missed
				}
			}
		}
		return on.healController, nil
	}
}

// healController waits until a controller is there again.
func (t *target) healController(ctx context.Context) error {
	wait(ctx, 5*pollInterval) // until kubelet has noticed
	return t.system.AwaitController(ctx)
}

func deleteController(ctx context.Context, on *target) (func(context.Context) error, error) {
	pods, err := on.controllerPods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if err := on.system.Client.Delete(ctx, &pods[i]); err != nil {
			return nil, err
		}
	}
	return on.healController, nil
}

// upgradeController rolls the Deployment to another image of the controller and of the agent, or back.
func upgradeController(ctx context.Context, on *target) (func(context.Context) error, error) {
	on.controller.Lock()
	controller, agent := on.system.Images.Controller.Reference, on.system.Images.Agent.Reference
	if !on.next {
		const registry, tag = "docker.io/", "-next"
		for _, image := range []string{controller, agent} {
			err := on.system.Cluster.TagImage(ctx, registry+image, registry+image+tag)
			if err != nil && !strings.Contains(err.Error(), "already exists") {
				on.controller.Unlock()
				return nil, err
			}
		}
		controller, agent = controller+tag, agent+tag
	}
	on.next = !on.next
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"manager","image":%q,"env":[{"name":"AGENT_IMAGE","value":%q}]}]}}}}`,
		controller, agent)
	_, err := on.system.Cluster.Kubectl(ctx, "patch", "deployment", podstage.ControllerName, "--namespace="+cluster.FluxNamespace, "--patch", patch)
	return func(ctx context.Context) error {
		defer on.controller.Unlock()
		return on.healController(ctx)
	}, err
}

// containerID is the ID in the status of a pod without what is before it.
func containerID(status string) string { return strings.TrimPrefix(status, "containerd://") }

// signal sends a signal to all processes of the container or pod that have the name; to the first one of the container, the
// agent or the controller, when that is empty. It returns how many there were.
func (s *scene) signal(id, name string, signal syscall.Signal) int {
	count := 0
	own := s.observer.in(id)
	for _, p := range own {
		if name != "" && p.name != name || name == "" && contains(own, p.parent) {
			continue
		}
		if syscall.Kill(p.pid, signal) == nil {
			count++
		}
	}
	return count
}

func contains(all []process, pid int) bool {
	for _, p := range all {
		if p.pid == pid {
			return true
		}
	}
	return false
}

// hunt is how long a fault looks for what it wants to hit.
const hunt = 5 * time.Second
