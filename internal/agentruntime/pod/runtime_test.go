package pod

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/patch"
)

func TestWorkspaceIsReadyExactlyWhileItsPodServes(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	pod := s.pod(workspace)
	s.Expect(s.status(workspace)().Ready).To(BeFalse())
	for _, object := range []ctrlclient.Object{&appsv1.StatefulSet{}, &corev1.Service{}} {
		s.Expect(s.get("app-workspace", object)).To(Succeed())
		s.Expect(metav1.IsControlledBy(object, workspace)).To(BeTrue())
	}
	address := newAddress()
	s.run(pod, address)
	s.Eventually(s.status(workspace)).Should(And(beReady(), HaveField("Address", "app-workspace."+s.namespace+".svc.cluster.local:50051")))
	s.Expect(s.runtime.Agents()).To(Equal(1))

	crash := corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
	s.report(pod, func(status *corev1.PodStatus) {
		container := &status.ContainerStatuses[0]
		container.Ready, container.State = false, corev1.ContainerState{Terminated: &crash}
	})
	s.Eventually(s.status(workspace)).Should(And(
		beUnready(autov1alpha1.CrashLoopBackOffReason), HaveField("Message", ContainSubstring("ran out of memory")), HaveField("Address", BeEmpty())))
	s.report(pod, running(pod, address))
	s.Eventually(s.status(workspace)).Should(beReady())

	s.Expect(s.client.Delete(t.Context(), pod)).To(Succeed())
	s.Eventually(s.status(workspace)).Should(beUnready(autov1alpha1.PodTerminatingReason))
	s.finish(pod)
	next := s.pod(workspace, pod.UID)
	s.run(next, address)
	s.Eventually(s.status(workspace)).Should(beReady())
}

func TestNothingIsWrittenWhenNothingChanged(t *testing.T) {
	s, workspace, pod, _ := startReady(t)
	set, service := &appsv1.StatefulSet{}, &corev1.Service{}
	s.Expect(s.get("app-workspace", set)).To(Succeed())
	s.Expect(s.get("app-workspace", service)).To(Succeed())
	applied, count := set.ResourceVersion, len(set.ManagedFields)
	s.stop()

	s.statuses = map[ctrlclient.ObjectKey]agentruntime.Status{}
	s.startController()
	s.Eventually(s.status(workspace)).Should(beReady())
	s.Expect(s.get("app-workspace", set)).To(Succeed())
	s.Expect(set.ResourceVersion).To(Equal(applied))
	s.Expect(set.ManagedFields).To(HaveLen(count))
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())
}

// A mesh that takes the port for one of plain HTTP breaks the connection, whose TLS it does not expect.
func TestServiceOfAnEarlierControllerTellsOfTLS(t *testing.T) {
	s, _, pod, _ := startReady(t)
	service := &corev1.Service{}
	s.Expect(s.get("app-workspace", service)).To(Succeed())
	service.Spec.Ports[0].Name, service.Annotations[appliedHashAnnotation] = "grpc", "earlier"
	s.Expect(s.client.Update(t.Context(), service, patch.FieldOwner)).To(Succeed())
	s.Eventually(func() ([]corev1.ServicePort, error) { return service.Spec.Ports, s.get("app-workspace", service) }).
		Should(ConsistOf(HaveField("Name", "tls-grpc")))
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())
}

func TestStatefulSetThatSomebodyScaledOrDeletedIsRestored(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	first := s.pod(workspace)
	set := &appsv1.StatefulSet{}
	s.Expect(s.get("app-workspace", set)).To(Succeed())
	before := set.DeepCopy()
	set.Spec.Replicas = new(int32)
	s.Expect(s.client.Patch(t.Context(), set, ctrlclient.MergeFrom(before))).To(Succeed())
	s.Eventually(func() (*int32, error) { return set.Spec.Replicas, s.get("app-workspace", set) }).Should(HaveValue(BeEquivalentTo(1)))

	s.Expect(s.client.Delete(t.Context(), set)).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), &corev1.Service{Namespace: s.namespace, Name: "app-workspace"})).To(Succeed())
	s.Eventually(func() (types.UID, error) {
		now := &appsv1.StatefulSet{}
		return now.UID, ctrlclient.IgnoreNotFound(s.get("app-workspace", now))
	}).ShouldNot(Equal(set.UID))
	s.Eventually(func() error { return s.get("app-workspace", &corev1.Service{}) }).Should(Succeed())
	s.pod(workspace, first.UID)
}

func TestDeletedWorkspaceLeavesNothing(t *testing.T) {
	s, workspace, pod, _ := startReady(t)
	s.Expect(s.runtime.Connect(t.Context(), workspace)).Error().NotTo(HaveOccurred())

	s.Expect(s.client.Delete(t.Context(), workspace)).To(Succeed())
	s.Eventually(s.beingDeleted(pod)).Should(BeTrue())
	s.Expect(s.runtime.Delete(t.Context(), keyOf(workspace))).To(MatchError(agentruntime.ErrEnding))
	s.finish(pod)
	s.Eventually(func() error { return s.runtime.Delete(t.Context(), keyOf(workspace)) }).Should(Succeed())
	for name, object := range map[string]ctrlclient.Object{
		podspec.ObjectName(workspace): &appsv1.StatefulSet{}, podspec.SecretName(workspace): &corev1.Secret{},
	} {
		s.Eventually(func() bool { return apierrors.IsNotFound(s.get(name, object)) }).Should(BeTrue(), name)
	}
	s.Eventually(s.nothingKept).Should(BeTrue())
	s.Expect(s.runtime.Connect(t.Context(), workspace)).Error().To(MatchError(agentruntime.ErrNoAgent))
}

// nothingKept reports whether the runtime has forgotten all Workspaces. The controller may still be doing that, so callers wait for it.
func (s *fixture) nothingKept() bool {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	s.runtime.connections.mu.Lock()
	defer s.runtime.connections.mu.Unlock()
	return len(s.runtime.trackers) == 0 && len(s.runtime.connections.open) == 0
}

func TestStatefulSetOfSomebodyElseIsLeftAlone(t *testing.T) {
	s := startFixture(t)
	owner := &corev1.ConfigMap{Namespace: s.namespace, Name: "owner"}
	s.Expect(s.client.Create(t.Context(), owner)).To(Succeed())
	owner.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	s.isInTheWay(s.foreignStatefulSet(*metav1.NewControllerRef(owner, owner.GroupVersionKind())), "StatefulSet app-workspace belongs to ConfigMap owner")
}

// foreignStatefulSet returns a StatefulSet that another program creates under the name that the Workspace "app" needs.
func (s *fixture) foreignStatefulSet(owner metav1.OwnerReference) *appsv1.StatefulSet {
	workspace := &metav1.ObjectMeta{Name: "app"}
	return &appsv1.StatefulSet{
		APIVersion: "apps/v1", Kind: "StatefulSet",
		Namespace: s.namespace, Name: "app-workspace", Labels: podspec.Labels(workspace), OwnerReferences: []metav1.OwnerReference{owner},
		Spec: appsv1.StatefulSetSpec{
			ServiceName: "app-workspace", PodManagementPolicy: appsv1.ParallelPodManagement, Replicas: new(int32),
			Selector: &metav1.LabelSelector{MatchLabels: podspec.Selector(workspace)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: podspec.Selector(workspace)},
				Spec: corev1.PodSpec{
					InitContainers: []corev1.Container{{Name: "fetch", Image: "other"}},
					Containers:     []corev1.Container{{Name: "pulumi", Image: "other", Env: []corev1.EnvVar{{Name: "OTHER", Value: "x"}}}},
				},
			},
		},
	}
}

func TestStatefulSetOfAnEarlierControllerIsTakenOverWhole(t *testing.T) {
	s := newFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	earlier := s.foreignStatefulSet(*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)))
	configuration, err := podspec.ApplyConfiguration(earlier)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.client.Apply(t.Context(), ctrlclient.ApplyConfigurationFromUnstructured(configuration), ctrlclient.FieldOwner("earlier"))).To(Succeed())

	s.startController()
	pod := s.pod(workspace)
	set := &appsv1.StatefulSet{}
	s.Expect(s.get("app-workspace", set)).To(Succeed())
	s.Expect(set.UID).To(Equal(configuration.GetUID()))
	for _, spec := range []corev1.PodSpec{set.Spec.Template.Spec, pod.Spec} {
		s.Expect(spec.InitContainers).NotTo(ContainElement(HaveField("Name", "fetch")))
		s.Expect(spec.Containers).To(ConsistOf(HaveField("Env", Not(ContainElement(HaveField("Name", "OTHER"))))))
	}
}
