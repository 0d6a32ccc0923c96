package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

// The tests of this file run alone, before the parallel ones: they replace the controller.

func TestUpdateGoesOnWhileTheControllerIsReplaced(t *testing.T) {
	a := deploySleeping(t, "controller-restarted", "")
	running := a.begin("seconds: 30", "create start")
	pod := a.pod()
	before := leadingController(a.ctx, a)
	begin := time.Now()
	_, err := kubectl(a.ctx, "rollout", "restart", "deployment/"+podstage.ControllerName, "--namespace="+cluster.FluxNamespace)
	a.Expect(err).NotTo(HaveOccurred())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(leadingController(a.ctx, g)).NotTo(Equal(before)) })
	t.Logf("another controller led after %s", time.Since(begin))
	a.Expect(a.pulumiProcesses()).To(Equal(1))
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start"}), "the update has to be slower than the controller's start")
	a.expectUndisturbed(running, pod.UID)
}

func TestUpdateIsTakenUpWhenItsPodGoesWhileTheControllerIsAway(t *testing.T) {
	a := deploySleeping(t, "both-gone", "")
	running := a.begin("seconds: 10", "create start")
	pod, controller := a.pod(), &corev1.Pod{}
	name := client.ObjectKey{Namespace: cluster.FluxNamespace, Name: leadingController(a.ctx, a)}
	a.Expect(system.Client.Get(a.ctx, name, controller)).To(Succeed())
	begin := time.Now()
	// Its successor has to wait until it may lead.
	a.Expect(system.Cluster.KillContainer(a.ctx, controller.Status.ContainerStatuses[0].ContainerID)).To(Succeed())
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--wait=false")
	a.Expect(err).NotTo(HaveOccurred())
	a.awaitOtherPod(pod.UID)
	t.Logf("the next pod was there after %s", time.Since(begin))
	// Whether the controller came back before the pod was gone is a matter of luck.
	a.expectRecovery(running, Or(ContainSubstring("pulumi stopped gracefully"), ContainSubstring("outcome is not known")))
	t.Logf("the update had succeeded after %s: %s", time.Since(begin), running.Status.Message)
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create aborted", "create start", "create end"}))
}

func TestOtherAgentComesToIdlePodsAtOnceAndToBusyOnesAfterTheirOperation(t *testing.T) {
	idle, busy := deploySleeping(t, "upgrade-idle", "seconds: 0"), deploySleeping(t, "upgrade-busy", "")
	idlePod, busyPod := idle.pod(), busy.pod()
	running := busy.begin("seconds: 45", "create start")
	unready := watchReadiness(t, idle.Key())
	begin := time.Now()
	agent := upgrade(t, idle)
	t.Logf("the other controller was ready after %s", time.Since(begin))

	idle.awaitOtherPod(idlePod.UID)
	eventually(idle.ctx, idle.WithT, func(g Gomega) { g.Expect(pulumiOf(idle.pod()).Ready).To(BeTrue()) })
	t.Logf("the idle pod was replaced after %s", time.Since(begin))
	idle.Expect(idle.pod().Spec.InitContainers[0].Image).To(Equal(agent))
	busy.Expect(busy.journal(busy, "slow")).To(Equal([]string{"create start"}), "the update has to be slower than the upgrade")
	busy.Expect(busy.pulumiProcesses()).To(Equal(1))

	busy.awaitLine("slow", "create end")
	busy.expectUndisturbed(running, busyPod.UID)
	busy.awaitOtherPod(busyPod.UID)
	t.Logf("the busy pod was replaced after %s", time.Since(begin))
	busy.Expect(busy.pod().Spec.InitContainers[0].Image).To(Equal(agent))

	idle.Expect(unready()).To(BeEmpty(), "of the Stack without an update")
	// The pod that took the place works.
	rollout, err := system.Rollout(idle.ctx, idle.App, sleepingProgram(idle.Name, "seconds: 0.1"))
	idle.Expect(err).NotTo(HaveOccurred())
	t.Logf("from the artifact to the success with the other agent: %s", rollout.Duration())
}

// expectUndisturbed expects that the Update succeeds in the pod that it began in, and that nothing was done twice.
func (a *sleepingApp) expectUndisturbed(running *autov1alpha1.Update, pod types.UID) {
	awaitEnd(a.ctx, a.WithT, running)
	a.Expect(running.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), running.Status.Message)
	current := a.pod()
	a.Expect(current.UID).To(Equal(pod))
	a.Expect(pulumiOf(current).RestartCount).To(BeZero())
	stack := a.awaitSuccess(2)
	a.Expect(stack.Status.LastUpdate.Name).To(Equal(running.Name))
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create end"}))
}

// pulumiProcesses counts the processes in the pod that are "pulumi up".
func (a *sleepingApp) pulumiProcesses() int {
	output, err := runInPod(a.ctx, a.Namespace, a.Name, `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $f; echo; done 2>/dev/null`)
	a.Expect(err).NotTo(HaveOccurred())
	count := 0
	for line := range strings.Lines(output) {
		if program, args, _ := strings.Cut(line, " "); strings.HasSuffix(program, "/pulumi") && strings.Contains(" "+args, " up ") {
			count++
		}
	}
	return count
}

// upgrade replaces the controller by one with another image and another agent, of the same content, until the test ends. It
// returns the agent's image.
func upgrade(t *testing.T, a *sleepingApp) string {
	t.Helper()
	const registry, tag = "docker.io/", "-next"
	controller, agent := system.Images.Controller.Reference+tag, system.Images.Agent.Reference+tag
	a.Expect(system.Cluster.TagImage(a.ctx, registry+system.Images.Controller.Reference, registry+controller)).To(Succeed())
	a.Expect(system.Cluster.TagImage(a.ctx, registry+system.Images.Agent.Reference, registry+agent)).To(Succeed())
	t.Cleanup(func() { a.Expect(system.InstallController(context.WithoutCancel(a.ctx))).To(Succeed()) })
	before := leadingController(a.ctx, a)
	_, err := kubectl(a.ctx, "patch", "deployment", podstage.ControllerName, "--namespace="+cluster.FluxNamespace, "--patch",
		`{"spec":{"template":{"spec":{"containers":[{"name":"manager","image":"`+controller+`","env":[{"name":"AGENT_IMAGE","value":"`+agent+`"}]}]}}}}`)
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(system.AwaitController(a.ctx)).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(leadingController(a.ctx, g)).NotTo(Equal(before)) })
	return agent
}

// leadingController is the name of the pod of stack-controller that leads.
func leadingController(ctx context.Context, g Gomega) string {
	leases := &coordinationv1.LeaseList{}
	g.Expect(system.Client.List(ctx, leases, client.InNamespace(cluster.FluxNamespace))).To(Succeed())
	for _, lease := range leases.Items {
		pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
		if strings.HasPrefix(pod, podstage.ControllerName+"-") {
			return pod
		}
	}
	g.Expect(leases.Items).To(BeNil(), "nobody leads")
	return ""
}

// watchReadiness follows the Stack. The function that it returns ends that, and gives the conditions with which the Stack was not
// ready although no update of it was under way.
func watchReadiness(t *testing.T, key client.ObjectKey) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	watcher, err := system.Client.Watch(ctx, &pulumiv1.StackList{}, client.InNamespace(key.Namespace))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := make(chan []string, 1)
	go func() {
		defer watcher.Stop()
		var unready []string
		for event := range watcher.ResultChan() {
			stack, ok := event.Object.(*pulumiv1.Stack)
			if ok && stack.Status.CurrentUpdate == nil && !conditions.IsReady(stack) {
				unready = append(unready, fmt.Sprint(stack.Status.Conditions))
			}
		}
		found <- unready
	}()
	return func() []string {
		cancel()
		return <-found
	}
}
