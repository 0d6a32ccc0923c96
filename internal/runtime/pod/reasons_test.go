package pod

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// What only a node can do to a pod is told as the kubelet tells it.
func TestWhatANodeDoesToAPodIsToldAndEndsWithIt(t *testing.T) {
	for _, tt := range []struct {
		name            string
		happens         func(s *stage, pod *corev1.Pod)
		reason, message string
	}{
		{
			name: "evicted",
			happens: func(s *stage, pod *corev1.Pod) {
				s.report(pod, func(status *corev1.PodStatus) {
					status.Phase, status.Reason, status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
				})
			},
			reason: autov1alpha1.PodFailedReason, message: "Evicted",
		},
		{
			name: "no network",
			happens: func(s *stage, pod *corev1.Pod) {
				event := &corev1.Event{
					ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: pod.Name},
					InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
					Type:           corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: "network plugin is not ready",
					LastTimestamp: metav1.Now(),
				}
				s.Expect(s.client.Create(s.t.Context(), event)).To(Succeed())
			},
			reason: autov1alpha1.PodStartFailedReason, message: "network plugin is not ready",
		},
		{
			name: "another processor",
			happens: func(s *stage, pod *corev1.Pod) {
				s.report(pod, func(status *corev1.PodStatus) {
					running(pod, newAddress())(status)
					container := &status.ContainerStatuses[0]
					container.Ready, container.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
						ExitCode: 255, Reason: "Error", Message: "exec /share/agent: exec format error",
					}}
				})
			},
			reason: autov1alpha1.ImageArchitectureMismatchReason, message: "processor",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.startController()
			workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
			pod := s.pod(workspace)
			// The StatefulSet controller removes a pod that failed, unless something holds it.
			pod.Finalizers = []string{"example.com/held"}
			s.Expect(s.client.Update(t.Context(), pod)).To(Succeed())
			s.bind(pod)
			tt.happens(s, pod)
			s.Eventually(s.status(workspace)).Should(And(beUnready(tt.reason), HaveField("Message", ContainSubstring(tt.message)), HaveField("Failing", true)))
			s.Expect(s.get(pod.Name, pod)).To(Succeed())
			pod.Finalizers = nil
			s.Expect(s.client.Update(t.Context(), pod)).To(Succeed())
			if tt.reason == autov1alpha1.PodFailedReason {
				s.finish(pod)
				s.run(s.pod(workspace, pod.UID), newAddress())
			} else {
				s.report(pod, running(pod, newAddress()))
			}
			s.Eventually(s.status(workspace)).Should(beReady())
		})
	}
}

func TestNamespaceThatGoesIsToldByItsWorkspaces(t *testing.T) {
	s := newStage(t)
	// A namespace with something in it that does not go stays.
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "held", Finalizers: []string{"example.com/held"}}}
	s.Expect(s.client.Create(t.Context(), held)).To(Succeed())
	workspace := &autov1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: "app", Finalizers: []string{"example.com/held"},
	}}
	s.Expect(s.client.Create(t.Context(), workspace)).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
	s.startController()
	s.Eventually(s.status(workspace)).Should(beUnready(autov1alpha1.NamespaceTerminatingReason))
	for _, object := range []metav1.Object{held, workspace} {
		object.SetFinalizers(nil)
	}
	s.Expect(s.client.Update(t.Context(), held)).To(Succeed())
	s.Expect(s.get("app", workspace)).To(Succeed())
	workspace.Finalizers = nil
	s.Expect(s.client.Update(t.Context(), workspace)).To(Succeed())
}
