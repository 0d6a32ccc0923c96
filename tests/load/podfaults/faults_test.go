package podfaults_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// hunt is how long a fault looks for something that it can hit.
	hunt = 5 * time.Second
	// unnoticed and noticed are how long the node is away: kube-controller-manager notices after 50 s.
	unnoticed = 10 * time.Second
	noticed   = 60 * time.Second
)

// The things that faults hold. Two faults at the same time would heal each other.
var (
	theNode       = []string{"node"}
	theController = []string{"controller"}
)

// target is what a fault can hit.
type target struct {
	*campaign.Target
	*fixture
	// victim is the app with an operation in the phase that the fault has to hit.
	victim *campaign.App
}

// on adapts an injection to the campaign. The injection hits an app with an operation in the phase of the event.
func on(inject func(context.Context, *target) (campaign.Heal, error)) func(context.Context, *campaign.Target) (campaign.Heal, error) {
	return func(ctx context.Context, of *campaign.Target) (campaign.Heal, error) {
		t := &target{Target: of, fixture: of.Environment.System.(*fixture)}
		t.chase(ctx)
		heal, err := inject(ctx, t)
		if heal == nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return heal(ctx)
		}, err
	}
}

// catalogue lists all kinds of faults.
var catalogue = []campaign.Fault{
	{Kind: "controller killed (SIGKILL)", Short: true, Inject: on(signalController(syscall.SIGKILL))},
	{Kind: "controller stopped (SIGTERM)", Short: true, Inject: on(signalController(syscall.SIGTERM))},
	{Kind: "controller's pod deleted", Short: true, Inject: on(deleteController)},
	{Kind: "controller upgraded", Short: true, Holds: theController, Inject: on(upgradeController)},

	{Kind: "agent's container killed", Short: true, Inject: on(kill(""))}, // the first process of the container; all others end with it
	{Kind: "pulumi killed", Short: true, Inject: on(kill("pulumi"))},
	{Kind: "workspace pod deleted", Short: true, Inject: on(deletePod)},
	{Kind: "workspace pod deleted by force", Short: true, Inject: on(forcePod)},

	{Kind: "StatefulSet deleted", Short: true, Inject: on(deleteObject(&appsv1.StatefulSet{}, "-workspace"))},
	{Kind: "StatefulSet deleted, its pod left", Short: true,
		Inject: on(deleteObject(&appsv1.StatefulSet{}, "-workspace", client.PropagationPolicy(metav1.DeletePropagationOrphan)))},
	{Kind: "Service deleted", Short: true, Inject: on(deleteObject(&corev1.Service{}, "-workspace"))},
	{Kind: "Secret of the workspace deleted", Inject: on(deleteObject(&corev1.Secret{}, "-workspace-rpc"))},
	{Kind: "Workspace deleted", Short: true, Inject: on(deleteObject(&autov1alpha1.Workspace{}, ""))},
	{Kind: "Update deleted", Short: true, Inject: on(deleteUpdate)},

	{Kind: "node crashed, back at once", Short: true, Holds: theNode, Shortest: time.Second, Longest: unnoticed, Inject: on(crashNode)},
	{Kind: "node crashed, back after a minute", Holds: theNode, Shortest: noticed, Longest: noticed, Inject: on(crashNode)},
	{Kind: "node cut off, its pods deleted by force", Holds: theNode, Shortest: time.Second, Longest: unnoticed, Inject: on(cutNodeOff)},
}

// signalController sends a signal to the controller's process. kubelet restarts the container.
func signalController(signal syscall.Signal) func(context.Context, *target) (campaign.Heal, error) {
	return func(ctx context.Context, on *target) (campaign.Heal, error) {
		pods, err := on.controllerPods(ctx)
		if err != nil {
			return nil, err
		}
		on.Missed = true
		for _, pod := range pods {
			for _, status := range pod.Status.ContainerStatuses {
				if id := containerID(status.ContainerID); id != "" && status.State.Running != nil {
					on.Missed = on.signal(id, "", signal) == 0 && on.Missed
				}
			}
		}
		return on.healController, nil
	}
}

// healController waits until the controller is available again.
func (t *target) healController(ctx context.Context) error {
	campaign.Wait(ctx, 5*campaign.PollInterval) // for kubelet to notice
	return t.system.AwaitController(ctx)
}

func deleteController(ctx context.Context, on *target) (campaign.Heal, error) {
	pods, err := on.controllerPods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if err := on.Client.Delete(ctx, &pods[i]); err != nil {
			return nil, err
		}
	}
	return on.healController, nil
}

// upgradeController rolls the Deployment to another image of the controller and of the agent, or back to the first one.
func upgradeController(ctx context.Context, on *target) (campaign.Heal, error) {
	controller, agent := on.system.Images.Controller.Reference, on.system.Images.Agent.Reference
	if !on.next {
		const registry, tag = "docker.io/", "-next"
		for _, image := range []string{controller, agent} {
			err := on.system.Cluster.TagImage(ctx, registry+image, registry+image+tag)
			if err != nil && !strings.Contains(err.Error(), "already exists") {
				return nil, err
			}
		}
		controller, agent = controller+tag, agent+tag
	}
	on.next = !on.next
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"manager","image":%q,"env":[{"name":"AGENT_IMAGE","value":%q}]}]}}}}`,
		controller, agent)
	_, err := on.system.Cluster.Kubectl(ctx, "patch", "deployment", podsystem.ControllerName, "--namespace="+cluster.FluxNamespace, "--patch", patch)
	return on.healController, err
}

// onVictim calls the function again and again until it returns true or an error, or until the time is over.
func (t *target) onVictim(ctx context.Context, do func() (bool, error)) error {
	of := *t.Target
	of.Apps = []*campaign.App{t.victim}
	err := of.Hunt(ctx, hunt, func(*campaign.App) (bool, error) { return do() })
	t.Missed = of.Missed
	return err
}

// kill kills the process with the name in the victim's container, as soon as there is one. An empty name stands for the first process of
// the container.
func kill(name string) func(context.Context, *target) (campaign.Heal, error) {
	return func(ctx context.Context, on *target) (campaign.Heal, error) {
		on.victim.Killed()
		return nil, on.onVictim(ctx, func() (bool, error) {
			id := on.container(ctx, on.victim)
			return id != "" && on.signal(id, name, syscall.SIGKILL) > 0, nil
		})
	}
}

func deletePod(ctx context.Context, on *target) (campaign.Heal, error) { return nil, on.removePod(ctx) }

func forcePod(ctx context.Context, on *target) (campaign.Heal, error) {
	on.victim.Killed()
	return nil, on.removePod(ctx, &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}

// removePod deletes the pod of the victim as soon as it exists.
func (t *target) removePod(ctx context.Context, options ...client.DeleteOption) error {
	return t.onVictim(ctx, func() (bool, error) {
		pod := t.pod(ctx, t.victim)
		if pod == nil {
			return false, nil
		}
		return true, client.IgnoreNotFound(t.Client.Delete(ctx, pod, options...))
	})
}

// deleteObject deletes an object of the victim, as a user would by hand. The name of the object is that of the victim with the suffix.
func deleteObject(kind client.Object, suffix string, options ...client.DeleteOption) func(context.Context, *target) (campaign.Heal, error) {
	return func(ctx context.Context, on *target) (campaign.Heal, error) {
		doomed := kind.DeepCopyObject().(client.Object)
		doomed.SetNamespace(on.victim.Namespace)
		doomed.SetName(on.victim.Name + suffix)
		return nil, on.onVictim(ctx, func() (bool, error) {
			err := on.Client.Delete(ctx, doomed, options...)
			return err == nil, client.IgnoreNotFound(err)
		})
	}
}

// deleteUpdate deletes the running Update of the victim, which cancels its operation.
func deleteUpdate(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.onVictim(ctx, func() (bool, error) {
		updates := &autov1alpha1.UpdateList{}
		if err := on.Client.List(ctx, updates, client.InNamespace(on.victim.Namespace)); err != nil {
			return false, err
		}
		for i, update := range updates.Items {
			if !update.IsComplete() {
				return true, client.IgnoreNotFound(on.Client.Delete(ctx, &updates.Items[i]))
			}
		}
		return false, nil
	})
}

// crashNode freezes kubelet and kills everything that runs in pods: workspaces, the controller, Flux.
func crashNode(_ context.Context, on *target) (campaign.Heal, error) {
	if err := on.loseNode(); err != nil {
		return nil, err
	}
	for _, p := range on.observer.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // an ended process causes an error
	}
	return on.findNode, nil
}

// cutNodeOff freezes kubelet, but not the processes in pods, and deletes the pods by force, as a person would who believes that the node is
// gone.
func cutNodeOff(ctx context.Context, on *target) (campaign.Heal, error) {
	if err := on.loseNode(); err != nil {
		return nil, err
	}
	for _, a := range on.Apps {
		pods := &corev1.PodList{}
		if err := on.Client.List(ctx, pods, client.InNamespace(a.Namespace)); err != nil {
			return on.findNode, err
		}
		for i := range pods.Items {
			if err := on.Remove(ctx, &pods.Items[i], client.GracePeriodSeconds(0)); err != nil {
				return on.findNode, err
			}
		}
	}
	return on.findNode, nil
}

func (t *target) loseNode() error {
	for _, a := range t.Apps {
		a.Killed()
	}
	return t.system.Cluster.SuspendKubelet()
}

// findNode brings the node back, and waits for the controllers on it.
func (t *target) findNode(ctx context.Context) error {
	if err := t.system.Cluster.ResumeKubelet(ctx); err != nil {
		return err
	}
	return t.healController(ctx)
}

// The phases of an operation.
const (
	// idle: there is no operation.
	idle = "none"
	// queued: the Stack was changed, but its Update does not exist or has not begun.
	queued = "queued"
	// preparing: the operation has begun, but has not changed any resource.
	preparing = "preparing"
	// running: the operation is changing a resource.
	running = "running"
	// finishing: all resources were changed, but the Update does not have the result yet.
	finishing = "finishing"
)

// chaseTime is how long a fault waits for its phase.
const chaseTime = 8 * time.Second

// chase chooses as the victim the first app with an operation in the phase of the event, beginning with a random app. When no operation
// reaches the phase in time, the victim is a random app in any phase.
func (t *target) chase(ctx context.Context) {
	e, wanted := t.Event, t.Event.Phase
	_ = t.Hunt(ctx, chaseTime, func(a *campaign.App) (bool, error) {
		t.victim, e.Phase = a, t.phase(ctx, a)
		return e.Phase == wanted, nil
	}) // the function returns no error
	t.Missed, e.Victim = false, t.victim.Name
}

// phases has what the journals show about operations.
type phases struct {
	mu    sync.Mutex
	begun map[types.UID]int // number of "start" lines in the journals when an Update was seen first
	lost  map[string]int    // by app: number of steps that were begun before the Update and never ended
}

// phase returns the phase of the app's operation.
func (s *fixture) phase(ctx context.Context, a *campaign.App) string {
	updates := &autov1alpha1.UpdateList{}
	if err := s.Client.List(ctx, updates, client.InNamespace(a.Namespace)); err != nil {
		return idle
	}
	begun, ended := a.Counts()
	p := &s.phases
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, update := range updates.Items {
		if update.IsComplete() {
			continue
		}
		a.TakeChange(true)
		if update.Status.StartTime == nil {
			// Steps that were killed before this Update never end.
			p.begun[update.UID], p.lost[a.Name] = begun, begun-ended
			return queued
		}
		before, known := p.begun[update.UID]
		switch {
		case !known || begun == before:
			p.begun[update.UID] = begun
			return preparing
		case begun-ended > p.lost[a.Name]:
			return running
		}
		return finishing
	}
	if a.TakeChange(false) {
		return queued
	}
	return idle
}
