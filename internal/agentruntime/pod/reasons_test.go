package pod

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// There are no nodes, so the test reports what a node does to a pod as the kubelet reports it.
func TestWhatANodeDoesToAPodIsReportedAndEndsWithIt(t *testing.T) {
	for _, tt := range []struct {
		name            string
		happens         func(s *fixture, pod *corev1.Pod)
		reason, message string
	}{
		{
			name: "no network",
			happens: func(s *fixture, pod *corev1.Pod) {
				event := &corev1.Event{
					Namespace: pod.Namespace, GenerateName: pod.Name,
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
			happens: func(s *fixture, pod *corev1.Pod) {
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
			s := startFixture(t)
			workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
			pod := s.pod(workspace)
			s.bind(pod)
			tt.happens(s, pod)
			s.Eventually(s.status(workspace)).Should(And(beUnready(tt.reason), HaveField("Message", ContainSubstring(tt.message)), HaveField("Failing", true)))
			s.report(pod, running(pod, newAddress()))
			s.Eventually(s.status(workspace)).Should(beReady())
		})
	}
}

func TestPodThatFailedAsAWholeIsReportedUntilTheNextOneRuns(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	pod := s.pod(workspace)
	s.bind(pod)
	allow := s.keepPods()
	s.report(pod, func(status *corev1.PodStatus) {
		status.Phase, status.Reason, status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
	})
	s.Eventually(s.status(workspace)).Should(And(beUnready(autov1alpha1.PodFailedReason), HaveField("Message", ContainSubstring("Evicted"))))
	allow()
	s.run(s.pod(workspace, pod.UID), newAddress())
	s.Eventually(s.status(workspace)).Should(beReady())
}

// keepPods makes the API server refuse to delete pods in the namespace until allow is called: otherwise the StatefulSet controller deletes
// a failed pod before the test can observe it.
func (s *fixture) keepPods() (allow func()) {
	s.t.Helper()
	name := metav1.ObjectMeta{Name: s.namespace}
	inNamespace := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace}}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{NamespaceSelector: inNamespace, ResourceRules: []admissionv1.NamedRuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Delete},
			APIGroups:  []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"},
		}}},
		Validations: []admissionv1.Validation{{Expression: "false"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	s.Expect(s.client.Create(s.t.Context(), policy)).To(Succeed())
	s.Expect(s.client.Create(s.t.Context(), binding)).To(Succeed())
	probe := &corev1.Pod{}
	s.Eventually(func(g Gomega) {
		g.Expect(s.get("app-workspace-0", probe)).To(Succeed())
		g.Expect(s.client.Delete(s.t.Context(), probe, ctrlclient.DryRunAll)).To(MatchError(ContainSubstring("ValidatingAdmissionPolicy")))
	}).Should(Succeed())
	return func() {
		s.Expect(s.client.Delete(s.t.Context(), binding)).To(Succeed())
		s.Expect(s.client.Delete(s.t.Context(), policy)).To(Succeed())
	}
}

func TestNamespaceThatGoesIsReportedByItsWorkspaces(t *testing.T) {
	s := newFixture(t)
	// The finalizer of this object keeps the namespace from disappearing.
	held := &corev1.ConfigMap{Namespace: s.namespace, Name: "held", Finalizers: []string{"example.com/held"}}
	s.Expect(s.client.Create(t.Context(), held)).To(Succeed())
	workspace := &autov1alpha1.Workspace{
		Namespace: s.namespace, Name: "app", Finalizers: []string{"example.com/held"}}
	s.Expect(s.client.Create(t.Context(), workspace)).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), &corev1.Namespace{Name: s.namespace})).To(Succeed())
	s.startController()
	s.Eventually(s.status(workspace)).Should(beUnready(autov1alpha1.NamespaceTerminatingReason))
	for _, object := range []metav1.Object{held, workspace} {
		object.SetFinalizers(nil)
	}
	s.Expect(s.client.Update(t.Context(), held)).To(Succeed())
	s.Expect(s.client.Patch(t.Context(), workspace, ctrlclient.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).
		To(Succeed())
}

func TestTemplateThatMakesNoPodIsReportedUntilItIsEdited(t *testing.T) {
	s := startFixture(t)
	template := &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
		Containers: []corev1.Container{{Name: "of-no-image"}}}}
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{PodTemplate: template})
	s.Eventually(s.status(workspace)).Should(And(beUnready(autov1alpha1.PodTemplateInvalidReason), HaveField("Stalled", true)))
	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.PodTemplate = nil })
	s.run(s.pod(workspace), newAddress())
	s.Eventually(s.status(workspace)).Should(beReady())
}

func TestLittleIsReadOfEventsHoweverLargeTheyAre(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	for range 20 {
		s.Expect(s.client.Create(t.Context(), &corev1.Event{
			Namespace: s.namespace, GenerateName: "large-",
			InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Namespace: s.namespace, Name: "app-workspace", UID: "set"},
			Type:           corev1.EventTypeWarning, Reason: "FailedCreate", Message: strings.Repeat("x", 1<<20), LastTimestamp: metav1.Now(),
		})).To(Succeed())
	}
	o := &observation{now: time.Now(), statefulSet: &appsv1.StatefulSet{UID: "set"}}
	s.Expect(needsEvents(o)).To(BeEquivalentTo("set"))
	events, err := s.runtime.readEvents(t.Context(), workspace, o)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(len(events)).To(And(BeNumerically(">=", eventsPerPage), BeNumerically("<=", 2*eventsPerPage)))
	for i := range events {
		s.Expect(events[i].Size()).To(BeNumerically("<", 2*maxEventText))
	}
}
