package pods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// quick is how long a pod may take to end whose pulumi stops when it is asked to. The grace period is 10 minutes.
const quick = time.Minute

func TestPodThatIsDeletedDuringAnUpdateEndsItAndTheNextPodTakesItUp(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "pod-deleted", "")
	running := a.begin("seconds: 10", "create start")
	pod := a.pod()
	begin := time.Now()
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--wait=false")
	a.Expect(err).NotTo(HaveOccurred())
	a.awaitOtherPod(pod.UID)
	t.Logf("the next pod was there after %s", time.Since(begin))
	a.Expect(time.Since(begin)).To(BeNumerically("<", quick))
	a.expectGracefulEnd(pod.UID, func() { a.expectRecovery(running, ContainSubstring("pulumi stopped gracefully")) })
	t.Logf("the update had succeeded after %s", time.Since(begin))
}

func TestPodWithAShortGraceStopsPulumiBeforeItIsKilled(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "short-grace", "seconds: 0", func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	})
	running := a.begin("seconds: 20, ignoreCancel: true", "update start")
	pod := a.pod()
	begin := time.Now()
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--wait=false")
	a.Expect(err).NotTo(HaveOccurred())
	a.awaitOtherPod(pod.UID)
	t.Logf("the next pod was there after %s", time.Since(begin))
	a.expectRecovery(running, ContainSubstring("was stopped in the middle of a resource operation"))
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create end", "update start", "update start", "update end"}))
}

func TestDestroyWhosePodIsDeletedIsTakenUpByTheNextPod(t *testing.T) {
	t.Parallel()
	a := deploySleeping(t, "destroy-interrupted", "deleteSeconds: 8", func(stack *pulumiv1.Stack) {
		stack.Spec.DestroyOnFinalize = true
	})
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	a.Expect(system.Client.Delete(a.ctx, stack)).To(Succeed())
	a.awaitLine("slow", "delete start")
	pod := a.pod()
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--wait=false")
	a.Expect(err).NotTo(HaveOccurred())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(isGone(a.ctx, stack)).To(BeTrue(), "%+v", stack.Status) })
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create end", "delete start", "delete aborted", "delete start", "delete end"}))
	a.Expect(a.journal(a, "first")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	a.Expect(a.locks()).To(BeEmpty())
}

func TestNodeThatIsDrainedDuringAnUpdateEndsItAndTheNextPodTakesItUp(t *testing.T) {
	a := deploySleeping(t, "node-drained", "")
	running := a.begin("seconds: 10", "create start")
	pod := a.pod()
	t.Cleanup(func() {
		_, err := system.Cluster.Kubectl(context.WithoutCancel(t.Context()), "uncordon", pod.Spec.NodeName)
		a.Expect(err).NotTo(HaveOccurred())
	})
	begin := time.Now()
	// Only this pod: the node is the only one.
	_, err := kubectl(a.ctx, "drain", pod.Spec.NodeName, "--pod-selector=auto.pulumi.com/workspace-name="+a.Name, "--delete-emptydir-data", "--timeout=2m")
	a.Expect(err).NotTo(HaveOccurred())
	t.Logf("the node was drained after %s", time.Since(begin))
	a.Expect(time.Since(begin)).To(BeNumerically("<", quick))

	stack := awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.CurrentUpdate).NotTo(BeNil())
		g.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(1))
		g.Expect(stack.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("no node takes pod"))))
	})
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	_, err = kubectl(a.ctx, "uncordon", pod.Spec.NodeName)
	a.Expect(err).NotTo(HaveOccurred())
	a.expectGracefulEnd(pod.UID, func() { a.expectRecovery(running, ContainSubstring("pulumi stopped gracefully")) })
}

// expectGracefulEnd expects that pulumi told the provider, and that the next pod created what the first one did not.
func (a *sleepingApp) expectGracefulEnd(first types.UID, recovery func()) {
	recovery()
	a.Expect(a.journal(a, "slow")).To(Equal([]string{"create start", "create aborted", "create start", "create end"}))
	a.Expect(a.pod().UID).NotTo(Equal(first))
}

// awaitOtherPod waits until there is another pod of the workspace.
func (a *sleepingApp) awaitOtherPod(uid types.UID) {
	eventually(a.ctx, a.WithT, func(g Gomega) {
		pod := &corev1.Pod{}
		err := system.Client.Get(a.ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Name + "-workspace-0"}, pod)
		if !apierrors.IsNotFound(err) {
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(pod.UID).NotTo(BeElementOf(uid, types.UID("")))
	})
}
