package pods_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The tests of this file replace the controller, or affect the only node, so they run alone until they call letOthersRun or t.Parallel.
// Their order matters: what a test leaves to be checked later must not be disturbed by the tests after it.

// When the controller is back, it finds a deleted Secret, a deleted pod and problems that last.
func TestControllerThatWasAwayGoesOn(t *testing.T) {
	suite.Long(t, "stops the node or the controller")
	g := NewWithT(t)
	ctx := t.Context()
	app, recorder := deployRecorded(ctx, t, "secret-deleted")
	a := deploySleeping(t, "both-gone", "")
	plays := []*fixture{
		begin(t, g, "restart-quota", exceeded(corev1.ResourcePods, "0", "1")),
		begin(t, g, "restart-volume", problem{provoke: mountLateVolume, reason: autov1alpha1.VolumeMountFailedReason, heal: createConfigMap}),
	}
	for _, p := range plays {
		t.Run(p.app.Name+" is shown", p.expectShown)
	}
	running := a.begin(a.untilReleased(), "create start")
	var statuses []any
	g.Eventually(func() bool {
		last := statuses
		statuses = statusesOf(ctx, g, plays)
		return reflect.DeepEqual(last, statuses)
	}).WithContext(ctx).WithTimeout(patience).WithPolling(2*time.Second).Should(BeTrue(), "the problems do not settle")

	pod, controller, before := a.pod(), &corev1.Pod{}, leader(ctx, g)
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: cluster.FluxNamespace, Name: podOfLeader(before)}, controller)).To(Succeed())
	begun := time.Now()
	// The next controller has to wait until it can acquire the lease.
	g.Expect(system.Cluster.KillContainer(ctx, controller.Status.ContainerStatuses[0].ContainerID)).To(Succeed())
	// The certificate in the Secret is lost: the controller that knew it has ended.
	g.Expect(system.Client.Delete(ctx, rpcSecretOf(app.Name))).To(Succeed())
	g.Expect(system.Client.Delete(ctx, pod)).To(Succeed())
	eventually(ctx, g, func(g Gomega) { g.Expect(leader(ctx, g)).NotTo(Equal(before)) })
	t.Logf("another controller led after %s", time.Since(begun))
	g.Expect(system.AwaitController(ctx)).To(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(statusesOf(ctx, g, plays)).To(Equal(statuses)) }).WithContext(ctx).
		WithTimeout(10 * time.Second).WithPolling(pollInterval).Should(Succeed())
	a.awaitOtherPod(pod.UID)
	a.release()
	t.Logf("the next pod was there after %s", time.Since(begun))

	for _, p := range plays {
		p.end(t, g)
	}
	for _, p := range plays {
		t.Run(p.app.Name+" heals", p.expectRecovered)
	}
	a.letOthersRun(t)
	t.Run("the update is taken up", func(*testing.T) {
		// It is a matter of luck whether the controller came back before the pod was gone.
		a.expectRecovery(running, Or(ContainSubstring("pulumi stopped gracefully"), ContainSubstring("outcome is not known")))
		a.Expect(a.journal("slow")).To(Equal(graceful))
	})
	t.Run("the Secret is made again", func(t *testing.T) {
		g := NewWithT(t)
		eventually(ctx, g, func(g Gomega) {
			g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(rpcSecretOf(app.Name)), &corev1.Secret{})).To(Succeed())
		})
		bounded, cancel := context.WithTimeout(ctx, healingPatience)
		defer cancel()
		_, err := system.Rollout(bounded, app, programWith(app.Name, "two"))
		g.Expect(err).NotTo(HaveOccurred())
		t.Logf("an update had succeeded after %s: %v", time.Since(begun), recorder.reasons(autov1alpha1.WorkspaceKind, begun))
	})
}

func TestNodeThatIsLostIsShownAndItsReturnRecovers(t *testing.T) {
	suite.Long(t, "stops the node or the controller")
	g := NewWithT(t)
	const name = "node-lost"
	ctx := t.Context()
	app, recorder := deployRecorded(ctx, t, name, func(stack *pulumiv1.Stack) {
		pod := podSpecOf(stack)
		pod.TerminationGracePeriodSeconds = ptr.To[int64](5)
	})
	// Kubernetes marks only pods as not ready that the kubelet reported to be ready before. The controller reaches the agent before that
	// report.
	awaitReadyWorkspace(ctx, g, app.Key())
	pod := podOf(ctx, g, name, name)
	findNode := func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		g.Expect(system.Cluster.ResumeKubelet(bounded)).To(Succeed())
		g.Expect(system.AwaitController(bounded)).To(Succeed())
	}
	t.Cleanup(findNode)

	begin := time.Now()
	g.Expect(system.Cluster.SuspendKubelet()).To(Succeed())
	eventually(ctx, g, func(g Gomega) {
		ready := conditions.Get(workspaceOf(ctx, g, app), autov1alpha1.WorkspaceReady)
		g.Expect(ready).To(HaveField("Reason", autov1alpha1.NodeLostReason))
		g.Expect(ready.Message).To(Equal("node " + pod.Spec.NodeName + " of pod " + pod.Name + " does not answer"))
	})
	t.Logf("the node's loss is shown after %s", time.Since(begin))
	change(ctx, g, app.Key(), func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, "now")
	})
	// Nothing carries out the deletion of the pod. Kubernetes itself does not evict pods while all nodes are lost.
	g.Expect(system.Client.Delete(ctx, pod)).To(Succeed())
	stack := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.WorkspaceNotReadyReason))
		g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring("has not ended in time, its node " + pod.Spec.NodeName + " may be gone"))
	})
	t.Logf("after %s: %s", time.Since(begin), conditions.GetMessage(stack, meta.ReadyCondition))

	begin = time.Now()
	findNode()
	t.Logf("the node was ready after %s", time.Since(begin))
	t.Parallel()
	waitReady(ctx, g, app)
	t.Logf("healed: %v", recorder.reasons(autov1alpha1.WorkspaceKind, time.Time{}))
	g.Expect(podOf(ctx, g, name, name).UID).NotTo(Equal(pod.UID))
}

func TestNodeThatIsDrainedDuringAnUpdateEndsItAndTheNextPodTakesItUp(t *testing.T) {
	suite.Long(t, "stops the node or the controller")
	a := deploySleeping(t, "node-drained", "")
	running := a.begin(a.untilReleased(), "create start")
	pod := a.pod()
	t.Cleanup(func() {
		_, err := system.Cluster.Kubectl(context.WithoutCancel(t.Context()), "uncordon", pod.Spec.NodeName)
		a.Expect(err).NotTo(HaveOccurred())
	})
	begin := time.Now()
	// Drain only this pod: there is no other node.
	_, err := kubectl(a.ctx, "drain", pod.Spec.NodeName, "--pod-selector=auto.pulumi.com/workspace-name="+a.Name, "--delete-emptydir-data", "--timeout=2m")
	a.Expect(err).NotTo(HaveOccurred())
	t.Logf("the node was drained after %s", time.Since(begin))
	a.Expect(time.Since(begin)).To(BeNumerically("<", quick))

	stack := awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.CurrentUpdate).NotTo(BeNil())
		g.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(1))
		g.Expect(stack.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("cannot be scheduled"))))
	})
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	_, err = kubectl(a.ctx, "uncordon", pod.Spec.NodeName)
	a.Expect(err).NotTo(HaveOccurred())
	a.release()
	a.letOthersRun(t)
	a.expectRecovery(running, ContainSubstring("pulumi stopped gracefully"))
	a.Expect(a.journal("slow")).To(Equal(graceful))
	a.Expect(a.pod().UID).NotTo(Equal(pod.UID))
}

func TestOtherAgentComesToIdlePodsAtOnceAndToBusyOnesAfterTheirOperation(t *testing.T) {
	suite.Long(t, "stops the node or the controller")
	idle, busy := deploySleeping(t, "upgrade-idle", "seconds: 0"), deploySleeping(t, "upgrade-busy", "")
	idlePod, busyPod := idle.pod(), busy.pod()
	running := busy.begin(busy.untilReleased(), "create start")
	unready := watchReadiness(t, idle.Key())
	begin := time.Now()
	agent, goBack := upgrade(idle)
	t.Logf("the other controller was ready after %s", time.Since(begin))
	busy.Expect(busy.journal("slow")).To(Equal([]string{"create start"}))
	busy.Expect(busy.pulumiProcesses()).To(Equal(1))

	idle.awaitOtherPod(idlePod.UID)
	eventually(idle.ctx, idle.WithT, func(g Gomega) { g.Expect(pulumiOf(idle.pod()).Ready).To(BeTrue()) })
	t.Logf("the idle pod was replaced after %s", time.Since(begin))
	runsFromVolume := And(HaveField("Spec.InitContainers", BeEmpty()),
		HaveField("Spec.Volumes", ContainElement(HaveField("Image", HaveField("Reference", agent)))))
	idle.Expect(idle.pod()).To(runsFromVolume)

	busy.expectUndisturbed(running, busyPod.UID)
	busy.awaitOtherPod(busyPod.UID)
	t.Logf("the busy pod was replaced after %s", time.Since(begin))
	busy.Expect(busy.pod()).To(runsFromVolume)

	idle.Expect(unready()).To(BeEmpty(), "of the Stack without an update")

	// The new pod works.
	rollout, err := system.Rollout(idle.ctx, idle.App, sleepingProgram(idle.Name, "seconds: 0.1"))
	idle.Expect(err).NotTo(HaveOccurred())
	t.Logf("from the artifact to the success with the other agent: %s", rollout.Duration())
	goBack()
}

func TestTaintOfTheNodeIsShownAndItsEndRecovers(t *testing.T) {
	suite.Long(t, "stops the node or the controller")
	g := NewWithT(t)
	taint := func(ctx context.Context, taint string) {
		_, err := kubectl(ctx, "taint", "nodes", "--all", taint)
		g.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(func() {
		_, _ = kubectl(context.WithoutCancel(t.Context()), "taint", "nodes", "--all", "example.com/taken-")
	})
	p := begin(t, g, "node-tainted", problem{
		provoke: func(ctx context.Context, _ *WithT, _ *pulumiv1.Stack) { taint(ctx, "example.com/taken=yes:NoSchedule") },
		reason:  autov1alpha1.UnschedulableReason,
		says:    []string{"pod node-tainted-workspace-0 cannot be scheduled", "untolerated taint"},
		heal:    func(ctx context.Context, _ *WithT, _ client.ObjectKey) { taint(ctx, "example.com/taken-") },
	})
	t.Run("is shown", p.expectShown)
	p.end(t, g)
	t.Parallel()
	t.Run("heals", p.expectRecovered)
}

// statusesOf returns the statuses of the Stacks and Workspaces.
func statusesOf(ctx context.Context, g Gomega, plays []*fixture) (statuses []any) {
	for _, p := range plays {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(ctx, p.app.Key(), stack)).To(Succeed())
		statuses = append(statuses, stack.Status, workspaceOf(ctx, g, p.app).Status)
	}
	return statuses
}

// expectUndisturbed expects that the Update succeeds in the pod in which it began, and that nothing was done twice.
func (a *sleepingApp) expectUndisturbed(running *autov1alpha1.Update, pod types.UID) {
	a.release()
	awaitEnd(a.ctx, a.WithT, running)
	a.Expect(running.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), running.Status.Message)
	current := a.pod()
	a.Expect(current.UID).To(Equal(pod))
	a.Expect(pulumiOf(current).RestartCount).To(BeZero())
	stack := a.awaitSuccess(2)
	a.Expect(stack.Status.LastUpdate.Name).To(Equal(running.Name))
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end"}))
}

// pulumiProcesses returns the number of processes in the pod that run "pulumi up".
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

// upgrade replaces the controller, until the returned function is called, by one that has another image and another agent image, with the
// same content. The new controller mounts the agent's image into pods as a volume. upgrade also returns the reference of the agent's image.
func upgrade(a *sleepingApp) (agent string, goBack func()) {
	const registry, tag = "docker.io/", "-next"
	controller := system.Images.Controller.Reference + tag
	agent = system.Images.Agent.Reference + tag
	a.Expect(system.Cluster.TagImage(a.ctx, registry+system.Images.Controller.Reference, registry+controller)).To(Succeed())
	a.Expect(system.Cluster.TagImage(a.ctx, registry+system.Images.Agent.Reference, registry+agent)).To(Succeed())
	replace := func(ctx context.Context, args ...string) {
		before := leader(ctx, a)
		_, err := kubectl(ctx, append(args, "deployment/"+podsystem.ControllerName, "--namespace="+cluster.FluxNamespace)...)
		a.Expect(err).NotTo(HaveOccurred())
		a.Expect(system.AwaitController(ctx)).To(Succeed())
		eventually(ctx, a.WithT, func(g Gomega) { g.Expect(leader(ctx, g)).NotTo(Equal(before)) })
	}
	replace(a.ctx, "patch", "--type=json", "--patch", `[
		{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "`+controller+`"},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--agent-image=`+agent+`"},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--agent-image-volume"}]`)
	return agent, func() { replace(a.ctx, "rollout", "undo") }
}

// leader returns the identity of the stack-controller that leads: the name of its pod and a suffix that is different for each process.
func leader(ctx context.Context, g Gomega) string {
	leases := &coordinationv1.LeaseList{}
	g.Expect(system.Client.List(ctx, leases, client.InNamespace(cluster.FluxNamespace))).To(Succeed())
	for _, lease := range leases.Items {
		if identity := ptr.Deref(lease.Spec.HolderIdentity, ""); strings.HasPrefix(identity, podsystem.ControllerName+"-") {
			return identity
		}
	}
	g.Expect(leases.Items).To(BeNil(), "nobody leads")
	return ""
}

func podOfLeader(identity string) string {
	pod, _, _ := strings.Cut(identity, "_")
	return pod
}

// watchReadiness watches the Stack. The returned function ends the watch and returns the conditions of every status in which the Stack was
// not ready although no update was running.
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

const shardKey = "sharding.fluxcd.io/key"

// TestUpdateInAPodIsTakenOverByTheControllerOfAnotherShard runs alone, because it replaces the controller, twice. Both controllers watch
// the pod, and use the same ServiceAccount.
func TestUpdateInAPodIsTakenOverByTheControllerOfAnotherShard(t *testing.T) {
	suite.Long(t, "two controllers with pods")
	a := deploySleeping(t, "moved", "")
	pod := a.pod()
	main := &appsv1.Deployment{Namespace: cluster.FluxNamespace, Name: podsystem.ControllerName}
	a.Expect(system.Client.Get(a.ctx, client.ObjectKeyFromObject(main), main)).To(Succeed())
	args := main.Spec.Template.Spec.Containers[0].Args
	t.Cleanup(func() {
		watchWith(t, a, main, args)
		awaitOneLeader(context.WithoutCancel(t.Context()), a)
	})
	watchWith(t, a, main, append(args[:len(args):len(args)], "--watch-label-selector=!"+shardKey))

	shard := &appsv1.Deployment{Namespace: main.Namespace, Name: main.Name + "-shard1", Spec: *main.Spec.DeepCopy()}
	own := map[string]string{"app": shard.Name}
	shard.Spec.Selector.MatchLabels, shard.Spec.Template.Labels["app"] = own, shard.Name
	shard.Spec.Template.Spec.Containers[0].Args = append(args[:len(args):len(args)], "--watch-label-selector="+shardKey+"=shard1")
	t.Cleanup(func() { a.Expect(system.Client.Delete(context.WithoutCancel(t.Context()), shard)).To(Succeed()) })
	a.Expect(system.Client.Create(a.ctx, shard)).To(Succeed())
	_, err := kubectl(a.ctx, "rollout", "status", "deployment/"+shard.Name, "--namespace="+shard.Namespace, "--timeout=2m")
	a.Expect(err).NotTo(HaveOccurred())

	running := a.begin(a.untilReleased(), "create start")
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) { metav1.SetMetaDataLabel(&stack.ObjectMeta, shardKey, "shard1") })
	eventually(a.ctx, a.WithT, func(g Gomega) {
		workspace := &autov1alpha1.Workspace{}
		g.Expect(system.Client.Get(a.ctx, a.Key(), workspace)).To(Succeed())
		g.Expect(workspace.Labels).To(HaveKeyWithValue(shardKey, "shard1"))
		for _, update := range a.updates(g) {
			g.Expect(update.Labels).To(HaveKeyWithValue(shardKey, "shard1"))
		}
	})
	a.Expect(a.journal("slow")).To(Equal([]string{"create start"}))
	a.Expect(a.pulumiProcesses()).To(Equal(1))
	a.expectUndisturbed(running, pod.UID)

	// The Stack goes back to the main controller, which has no knowledge of it any longer.
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) { delete(stack.Labels, shardKey) })
	rollout, err := system.Rollout(a.ctx, a.App, sleepingProgram(a.Name, "seconds: 0.1"))
	a.Expect(err).NotTo(HaveOccurred())
	t.Logf("from the artifact to the success with the main controller: %s", rollout.Duration())
	a.Expect(a.pod().UID).To(Equal(pod.UID))
}

// watchWith sets the arguments of the Deployment's controller, and waits until the controller is ready.
func watchWith(t *testing.T, a *sleepingApp, deployment *appsv1.Deployment, args []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	eventually(ctx, a.WithT, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
		deployment.Spec.Template.Spec.Containers[0].Args = args
		g.Expect(system.Client.Update(ctx, deployment)).To(Succeed())
	})
	a.Expect(system.AwaitController(ctx)).To(Succeed())
}

// awaitOneLeader waits until the controllers that are gone have released their leases, because leader expects only one.
func awaitOneLeader(ctx context.Context, a *sleepingApp) {
	eventually(ctx, a.WithT, func(g Gomega) {
		leases := &coordinationv1.LeaseList{}
		g.Expect(system.Client.List(ctx, leases, client.InNamespace(cluster.FluxNamespace))).To(Succeed())
		held := 0
		for _, lease := range leases.Items {
			if strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), podsystem.ControllerName+"-") {
				held++
			}
		}
		g.Expect(held).To(Equal(1))
	})
}
