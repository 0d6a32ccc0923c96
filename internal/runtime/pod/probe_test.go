package pod

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestAgentIsReachedBeforeTheKubeletReportsThatItRuns(t *testing.T) {
	s := startStage(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	pod, address := s.pod(workspace), newAddress()
	s.bind(pod)
	s.report(pod, func(status *corev1.PodStatus) { status.PodIP, status.PodIPs = address, []corev1.PodIP{{IP: address}} })
	s.Consistently(s.status(workspace)).WithTimeout(300 * time.Millisecond).ShouldNot(beReady())

	agent := s.serve(workspace, address)
	s.Eventually(s.status(workspace)).Should(beReady())
	s.Expect(agent.asked.Load()).To(BeNumerically(">=", 1))
	connected, err := s.runtime.Connect(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	_, err = connected.GetInfo(t.Context())
	s.Expect(err).NotTo(HaveOccurred())

	// An operation that it has is not disturbed by a change.
	agent.busy.Store(true)
	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.Image = "example.com/other" })
	s.Eventually(s.status(workspace)).Should(beUnready(autov1alpha1.RollingUpdateReason))
	s.Consistently(s.beingDeleted(pod)).WithTimeout(300 * time.Millisecond).Should(BeFalse())
	recorded := time.Now().Add(-recordTime)
	agent.ended.Store(&recorded)
	agent.busy.Store(false)
	s.Eventually(s.beingDeleted(pod)).Should(BeTrue())
}

func TestWhatTheKubeletReportsCountsFromThenOn(t *testing.T) {
	s := startStage(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	pod, address := s.pod(workspace), newAddress()
	s.serve(workspace, address)
	s.bind(pod)
	s.report(pod, func(status *corev1.PodStatus) { status.PodIP, status.PodIPs = address, []corev1.PodIP{{IP: address}} })
	s.Eventually(s.status(workspace)).Should(beReady())
	s.report(pod, running(pod, address))
	s.Consistently(s.status(workspace)).WithTimeout(300 * time.Millisecond).Should(beReady())

	s.report(pod, func(status *corev1.PodStatus) { status.ContainerStatuses[0].Ready = false })
	s.Eventually(s.status(workspace)).ShouldNot(beReady())
}
