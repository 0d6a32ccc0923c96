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
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/faults/campaign"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

const (
	// hunt is how long a fault looks for what it wants to hit.
	hunt = 5 * time.Second
	// unnoticed and noticed are for how long the node is away: kube-controller-manager takes note after 50 s.
	unnoticed = 10 * time.Second
	noticed   = 60 * time.Second
)

// What faults hold: two at once would heal each other.
var (
	theNode       = []string{"node"}
	theController = []string{"controller"}
)

// target is what a fault may hit.
type target struct {
	*campaign.Target
	*scene
	// victim is the app whose operation is in the phase that the fault is for.
	victim *campaign.App
}

// on is the injection for the campaign, on an app whose operation is in the phase that the event says.
func on(inject func(context.Context, *target) (campaign.Heal, error)) func(context.Context, *campaign.Target) (campaign.Heal, error) {
	return func(ctx context.Context, of *campaign.Target) (campaign.Heal, error) {
		t := &target{Target: of, scene: of.World.System.(*scene)}
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

// catalogue lists all kinds.
var catalogue = []campaign.Fault{
	{Kind: "controller killed (SIGKILL)", Short: true, Inject: on(signalController(syscall.SIGKILL))},
	{Kind: "controller stopped (SIGTERM)", Short: true, Inject: on(signalController(syscall.SIGTERM))},
	{Kind: "controller's pod deleted", Short: true, Inject: on(deleteController)},
	{Kind: "controller upgraded", Short: true, Holds: theController, Inject: on(upgradeController)},

	{Kind: "agent's container killed", Short: true, Inject: on(kill(""))}, // the first process, with which all others end
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

// signalController sends a signal to the process. kubelet starts the container again.
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

// healController waits until a controller is there again.
func (t *target) healController(ctx context.Context) error {
	campaign.Wait(ctx, 5*campaign.PollInterval) // until kubelet has noticed
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

// upgradeController rolls the Deployment to another image of the controller and of the agent, or back.
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
	_, err := on.system.Cluster.Kubectl(ctx, "patch", "deployment", podstage.ControllerName, "--namespace="+cluster.FluxNamespace, "--patch", patch)
	return on.healController, err
}

// onVictim does something to the victim again and again, until that returns true or the time is over.
func (t *target) onVictim(ctx context.Context, do func() (bool, error)) error {
	of := *t.Target
	of.Apps = []*campaign.App{t.victim}
	err := of.Hunt(ctx, hunt, func(*campaign.App) (bool, error) { return do() })
	t.Missed = of.Missed
	return err
}

// kill kills the process of that name in the victim's container as soon as there is one.
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

// removePod deletes the pod of the victim as soon as there is one.
func (t *target) removePod(ctx context.Context, options ...client.DeleteOption) error {
	return t.onVictim(ctx, func() (bool, error) {
		pod := t.pod(ctx, t.victim)
		if pod == nil {
			return false, nil
		}
		return true, client.IgnoreNotFound(t.Client.Delete(ctx, pod, options...))
	})
}

// deleteObject deletes by hand the victim's object of the kind, whose name is that of the victim with the suffix.
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

// deleteUpdate deletes the Update of the victim that runs, which cancels its operation.
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

// crashNode has kubelet stand still and kills everything that runs in pods: workspaces, the controller, Flux.
func crashNode(_ context.Context, on *target) (campaign.Heal, error) {
	if err := on.loseNode(); err != nil {
		return nil, err
	}
	for _, p := range on.observer.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // what has ended has ended
	}
	return on.findNode, nil
}

// cutNodeOff has kubelet stand still while what runs goes on, and deletes the pods as people do who believe that the node is gone.
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
	return t.system.Cluster.LoseNode()
}

// findNode has the node come back, and waits for the controllers on it.
func (t *target) findNode(ctx context.Context) error {
	if err := t.system.Cluster.FindNode(ctx); err != nil {
		return err
	}
	return t.healController(ctx)
}

// How far an operation has come.
const (
	// idle: there is none.
	idle = "none"
	// queued: something else is wanted, and there is no Update for it, or one that has not begun.
	queued = "queued"
	// preparing: it has begun, and nothing has been done to a resource.
	preparing = "preparing"
	// running: something is being done to a resource.
	running = "running"
	// finishing: all of it is done, and that is not yet known.
	finishing = "finishing"
)

// chaseTime is how long a fault waits for the phase that it wants to hit.
const chaseTime = 8 * time.Second

// chase takes for its victim the first app, from a random one on, with an operation that is in the phase of the event. When there is
// none in time, it is a random one in whatever phase.
func (t *target) chase(ctx context.Context) {
	e, wanted := t.Event, t.Event.Phase
	_ = t.Hunt(ctx, chaseTime, func(a *campaign.App) (bool, error) {
		t.victim, e.Phase = a, t.phase(ctx, a)
		return e.Phase == wanted, nil
	}) // the function returns no error
	t.Missed, e.Victim = false, t.victim.Name
}

// phases is what is known of operations, from the journals.
type phases struct {
	mu    sync.Mutex
	begun map[types.UID]int // lines "start" in the journals when an Update was seen first
	lost  map[string]int    // by app, of what was begun before its Update, what never ended
}

// phase tells how far the app's operation has come.
func (s *scene) phase(ctx context.Context, a *campaign.App) string {
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
			// What was killed before will never come to its end.
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
