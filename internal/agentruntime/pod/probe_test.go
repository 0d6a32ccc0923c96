package pod

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

func TestAgentIsReachedBeforeTheKubeletReportsThatItRuns(t *testing.T) {
	s := startFixture(t)
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

	// A change of the Workspace does not interrupt an operation.
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
	s := startFixture(t)
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

func TestAgentsOfOneNamespaceThatHangDoNotKeepThoseOfOthersFromBeingFound(t *testing.T) {
	g := NewWithT(t)
	address := newAddress()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(podspec.Port)))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(listener.Close()).To(Succeed()) }()
	asked, found, release := make(chan string, 10*maxProbes), make(chan types.NamespacedName, 10*maxProbes), make(chan struct{})
	p := newProbes(func(key types.NamespacedName) { found <- key })
	begin := func(namespace, name string, hangs bool) {
		pod := &corev1.Pod{UID: types.UID(namespace + name), Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address}}
		p.answered(types.NamespacedName{Namespace: namespace, Name: name}, pod, func(context.Context) bool {
			asked <- namespace
			if hangs {
				<-release
			}
			return true
		})
	}
	for i := range 5 * maxProbes {
		begin("hostile", fmt.Sprint(i), true)
	}
	for range maxProbes / 2 {
		g.Eventually(asked).Should(Receive(Equal("hostile")))
	}
	g.Consistently(asked).WithTimeout(100*time.Millisecond).ShouldNot(Receive(), "it has its share")

	begin("other", "app", false)
	g.Eventually(found).Should(Receive(HaveField("Namespace", "other")))

	close(release)
	for range maxProbes / 2 {
		g.Eventually(found).Should(Receive(HaveField("Namespace", "hostile")))
	}
	for i := range maxProbes / 2 {
		g.Expect(p.places.Ask(types.NamespacedName{Namespace: "hostile", Name: fmt.Sprint(i)}, false)).To(BeZero(), "its share is free again")
	}
}
