package pod

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestChangeOfTheUserReplacesThePodOnceItsOperationEnded(t *testing.T) {
	s, workspace, pod, agent := startReady(t)
	agent.busy.Store(true)

	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.Image = "example.com/other" })
	s.Eventually(s.status(workspace)).Should(And(beUnready(autov1alpha1.RollingUpdateReason),
		HaveField("Message", ContainSubstring("its operation goes on until it ends"))))
	asked := agent.asked.Load()
	s.Eventually(agent.asked.Load).Should(BeNumerically(">", asked), "it is asked again and again")
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())

	recorded := time.Now().Add(-recordTime)
	agent.ended.Store(&recorded)
	agent.busy.Store(false)
	s.Eventually(s.beingDeleted(pod)).Should(BeTrue())
	s.finish(pod)
	next, _ := s.makeReady(workspace, pod.UID)
	s.Expect(next.Spec.Containers[0].Image).To(Equal("example.com/other"))
}

func TestPodWithAResultThatIsNotRecordedYetStays(t *testing.T) {
	s, workspace, pod, agent := startReady(t)
	now := time.Now()
	agent.ended.Store(&now)
	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.Image = "example.com/other" })
	s.Eventually(s.status(workspace)).Should(HaveField("Message", ContainSubstring("its operation goes on")))
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())
}

func TestPodThatDoesNotRunIsReplacedAtOnceByAChange(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{Image: "example.com/typo"})
	pod := s.pod(workspace)
	s.bind(pod)
	s.report(pod, func(status *corev1.PodStatus) {
		status.Phase = corev1.PodPending
		status.ContainerStatuses = []corev1.ContainerStatus{{Name: autov1alpha1.PulumiContainerName, Image: "example.com/typo",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
	})
	s.Eventually(s.status(workspace)).Should(beUnready(autov1alpha1.ImagePullFailedReason))
	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.Image = "example.com/right" })
	s.Eventually(s.beingDeleted(pod)).Should(BeTrue())
	s.finish(pod)
	s.makeReady(workspace, pod.UID)
}

func TestAnotherControllerReplacesIdlePodsFewAtATime(t *testing.T) {
	suite.Long(t, "waits for pauses of the controllers")
	s := startFixture(t)
	const idle = maxRollingOfNamespace + 2
	var workspaces []*autov1alpha1.Workspace
	var pods []*corev1.Pod
	for i := range idle {
		workspaces = append(workspaces, s.create(fmt.Sprint("idle-", i), autov1alpha1.WorkspaceSpec{}))
	}
	for _, workspace := range workspaces {
		pod, _ := s.makeReady(workspace)
		pods = append(pods, pod)
	}
	busy := s.create("busy", autov1alpha1.WorkspaceSpec{})
	busyPod, agent := s.makeReady(busy)
	agent.busy.Store(true)
	s.stop()

	s.image = "agent:v2"
	s.startController()
	ending := func() (count int) {
		for _, pod := range pods {
			deleted, err := s.beingDeleted(pod)()
			s.Expect(err).NotTo(HaveOccurred())
			if deleted {
				count++
			}
		}
		return count
	}
	s.Eventually(ending).Should(Equal(maxRollingOfNamespace))
	s.Eventually(s.runtime.rollout.count).Should(Equal(maxRollingOfNamespace))
	s.Consistently(ending).WithTimeout(300*time.Millisecond).Should(Equal(maxRollingOfNamespace), "the others wait")

	left := map[int]*corev1.Pod{}
	for i, pod := range pods {
		left[i] = pod
	}
	for len(left) > 0 {
		var i int
		// The order is not defined.
		s.Eventually(func() (found bool) {
			for i = range left {
				if deleted, err := s.beingDeleted(left[i])(); err == nil && deleted {
					return true
				}
			}
			return false
		}).Should(BeTrue())
		s.finish(left[i])
		next, _ := s.makeReady(workspaces[i], left[i].UID)
		s.Expect(next.Spec.InitContainers).To(ContainElement(HaveField("Image", "agent:v2")))
		delete(left, i)
	}
	s.Expect(s.beingDeleted(busyPod)()).To(BeFalse())
	s.Eventually(s.status(busy)).Should(beReady())
	s.Eventually(s.runtime.rollout.count).Should(BeZero())
}

func TestPodWithAnOutdatedAgentThatMayNotBeDeletedStaysReady(t *testing.T) {
	s, workspace, pod, _ := startReady(t)
	s.stop()
	s.keepPods()
	s.image = "agent:v2"
	s.statuses = map[ctrlclient.ObjectKey]agentruntime.Status{}
	s.startController()
	s.Eventually(func() time.Time {
		tracked := s.runtime.tracker(workspace)
		defer tracked.mu.Unlock()
		return tracked.keptAt
	}).ShouldNot(BeZero(), "it is tried")
	s.Eventually(s.status(workspace)).Should(And(beReady(), HaveField("RetryAfter", BeNumerically("~", keptInterval, time.Minute))))
	s.Expect(s.runtime.rollout.count()).To(BeZero(), "the others may be replaced")
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())
}

func TestPodThatMayNotBeDeletedIsNamedWithTheCause(t *testing.T) {
	s, workspace, _, _ := startReady(t)
	allow := s.keepPods()
	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.Image = "example.com/other" })
	s.Eventually(s.status(workspace)).Should(And(beUnready(autov1alpha1.RollingUpdateReason), HaveField("Failing", true),
		HaveField("Message", And(ContainSubstring("it cannot be deleted"), ContainSubstring("ValidatingAdmissionPolicy"))), HaveField("RetryAfter", rejectedInterval)))
	allow()
}

// count returns how many pods are being replaced.
func (r *rollout) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.rolling)
}

func TestSecretThatWasDeletedIsMadeAgainAndThePodReplaced(t *testing.T) {
	s, workspace, pod, agent := startReady(t)
	connection, err := s.runtime.Connect(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	agent.busy.Store(true)
	asked := agent.asked.Load()

	secret := &corev1.Secret{Namespace: s.namespace, Name: podspec.SecretName(workspace)}
	s.Expect(s.client.Delete(t.Context(), secret)).To(Succeed())
	// Secrets are not watched. The next event for the Workspace makes the controller notice that its Secret is gone.
	s.report(pod, func(status *corev1.PodStatus) { status.Message = "something happens" })
	s.Eventually(func() error { return s.get(secret.Name, &corev1.Secret{}) }).Should(Succeed())
	s.Eventually(agent.asked.Load).Should(BeNumerically(">", asked), "the agent is asked over the connection that there is")
	again, err := s.runtime.Connect(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(again).To(BeIdenticalTo(connection))
	s.Expect(s.status(workspace)()).To(beReady())
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())

	agent.busy.Store(false)
	s.report(pod, func(status *corev1.PodStatus) { status.Message = "something else happens" })
	s.Eventually(s.beingDeleted(pod)).Should(BeTrue())
	s.finish(pod)
	s.makeReady(workspace, pod.UID)
}
