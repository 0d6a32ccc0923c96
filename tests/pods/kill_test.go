package pods_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// deaf are the properties of a resource that does not end when pulumi asks it to.
const deaf = "seconds: 12, ignoreCancel: true"

func TestUpdateWhosePodIsKilledIsTakenUpByTheNextPod(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "pod-killed", "seconds: 0")
	running := a.begin(deaf, "update start")
	a.Expect(a.locks()).To(HaveLen(1))
	pod := a.pod()
	begin := time.Now()
	a.killPod(pod)
	a.expectRecovery(running, ContainSubstring("outcome is not known"))
	t.Logf("the update had succeeded after %s", time.Since(begin))
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create end", "update start", "update start", "update end"}))
}

func TestUpdateWhoseAgentIsKilledIsTakenUpInTheSamePod(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "agent-killed", "seconds: 0")
	running := a.begin(deaf, "update start")
	a.Expect(a.locks()).To(HaveLen(1))
	pod := a.pod()
	begin := time.Now()
	a.killAgent(pod)
	a.expectRecovery(running, Equal("the agent ended while pulumi ran; the outcome is not known"))
	t.Logf("the update had succeeded after %s", time.Since(begin))
	a.Expect(a.pod().UID).To(Equal(pod.UID))
	a.Expect(pulumiOf(a.pod()).RestartCount).To(BeEquivalentTo(1))
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create end", "update start", "update start", "update end"}))
}

func TestCreationThatWasCutOffIsReportedAndNotRepeated(t *testing.T) {
	for name, kill := range map[string]func(*sleepingApp, *corev1.Pod){
		"creation-without-agent": (*sleepingApp).killAgent,
		"creation-without-pod":   (*sleepingApp).killPod,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := deploySleeping(t, name, "")
			running := a.begin(deaf, "create start")
			kill(a, a.pod())
			stack := awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
				g.Expect(stack.Status.LastUpdate.Failures).To(BeNumerically(">=", 1))
				g.Expect(stack.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("another update could create it twice"))))
			})
			a.Expect(stack.Status.LastUpdate.Message).To(ContainSubstring("test:index:Sleep::slow"))
			awaitEnd(a.ctx, a.WithT, running)
			a.Expect(running.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
			a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start"}))

			// What the message says is what helps, once the lock is removed that may be left.
			output, err := runInPod(a.ctx, a.Namespace, a.Name, "export PULUMI_CONFIG_PASSPHRASE='correct horse battery staple'\n"+
				"pulumi cancel --yes && pulumi refresh --clear-pending-creates --yes --skip-preview --non-interactive")
			a.Expect(err).NotTo(HaveOccurred(), output)
			a.awaitLine("slow", "create end")
			awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
				g.Expect(stack.Status.CurrentUpdate).To(BeNil())
				g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
			})
			a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create start", "create end"}))
			a.Expect(a.journal(a, "first")).To(HaveExactElements("create start", "create end", "read start", "read end"))
			a.Expect(a.locks()).To(BeEmpty())
		})
	}
}

// killAgent ends the processes of the container pulumi, and waits until they are gone.
func (a *sleepingApp) killAgent(pod *corev1.Pod) {
	a.Expect(system.Cluster.KillContainer(a.ctx, pulumiOf(pod).ContainerID)).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(pulumiOf(a.pod()).RestartCount).To(BeEquivalentTo(1)) })
}

// killPod removes the pod without waiting for anything, and waits until there is another one.
func (a *sleepingApp) killPod(pod *corev1.Pod) {
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--grace-period=0", "--force")
	a.Expect(err).NotTo(HaveOccurred())
	a.awaitOtherPod(pod.UID)
}

// pulumiOf is the state of the container pulumi.
func pulumiOf(pod *corev1.Pod) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == autov1alpha1.PulumiContainerName {
			return status
		}
	}
	return corev1.ContainerStatus{}
}
