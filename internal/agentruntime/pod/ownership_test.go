package pod

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// isInTheWay creates the obstacle, and then the Workspace "app". It expects that the status names the obstacle, that the obstacle stays
// unchanged, and that the pod is created once the obstacle is gone. It returns the Workspace.
func (s *fixture) isInTheWay(obstacle ctrlclient.Object, message string) *autov1alpha1.Workspace {
	s.t.Helper()
	ctx := s.t.Context()
	s.Expect(s.client.Create(ctx, obstacle)).To(Succeed())
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obstacle)
	s.Expect(err).NotTo(HaveOccurred())

	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.Eventually(s.status(workspace)).Should(And(beUnready(autov1alpha1.NameConflictReason), HaveField("Stalled", true),
		HaveField("Message", message+"; delete it or choose another name for the workspace")))
	s.Expect(s.get(obstacle.GetName(), obstacle)).To(Succeed())
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obstacle)
	s.Expect(err).NotTo(HaveOccurred())
	for _, content := range []map[string]any{before, after} {
		// The controller of the obstacle writes its status.
		unstructured.RemoveNestedField(content, "status")
		unstructured.RemoveNestedField(content, "metadata", "managedFields")
		unstructured.RemoveNestedField(content, "metadata", "resourceVersion")
	}
	s.Expect(after).To(Equal(before))

	s.Expect(s.client.Delete(ctx, obstacle)).To(Succeed())
	s.requeue(workspace)
	s.pod(workspace)
	return workspace
}

// requeue makes the Workspace be reconciled at once. There is no watch on the obstacle, so this would otherwise take a minute.
func (s *fixture) requeue(workspace *autov1alpha1.Workspace) {
	s.t.Helper()
	s.runtime.events.Add(keyOf(workspace))
}

func TestStatefulSetThatNobodyOwnsIsLeftAlone(t *testing.T) {
	s := startFixture(t)
	labels := map[string]string{"app": "database"}
	s.isInTheWay(&appsv1.StatefulSet{
		Namespace: s.namespace, Name: "app-workspace",
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "pulumi", Image: "database"}},
			}},
		},
	}, "StatefulSet app-workspace exists already and was not made for this workspace")
}

func TestServiceThatNobodyOwnsIsLeftAlone(t *testing.T) {
	s := startFixture(t)
	s.isInTheWay(&corev1.Service{
		Namespace: s.namespace, Name: "app-workspace",
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "elsewhere.example.com"},
	}, "Service app-workspace exists already and was not made for this workspace")
}

// The annotation that says what was applied stays: anybody who may edit the object can write it.
func TestObjectThatLostItsOwnerGetsItBack(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.pod(workspace)
	for _, object := range []ctrlclient.Object{&appsv1.StatefulSet{}, &corev1.Service{}} {
		s.Expect(s.get("app-workspace", object)).To(Succeed())
		s.Expect(metav1.IsControlledBy(object, workspace)).To(BeTrue())
		change := ctrlclient.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`))
		s.Expect(s.client.Patch(t.Context(), object, change)).To(Succeed())
		s.Expect(object.GetOwnerReferences()).To(BeEmpty())
		s.Expect(object.GetAnnotations()).To(HaveKey(appliedHashAnnotation))
		s.requeue(workspace)
		s.Eventually(func() (bool, error) {
			err := s.get("app-workspace", object)
			return metav1.IsControlledBy(object, workspace), err
		}).Should(BeTrue())
	}
}

// The attacker knows the labels, and the private key.
func TestKeyPairThatSomebodyElseMadeIsNotUsed(t *testing.T) {
	s := startFixture(t)
	known, err := credentials.NewKeyPair()
	s.Expect(err).NotTo(HaveOccurred())
	name := podspec.SecretName(&metav1.ObjectMeta{Name: "app"})
	workspace := s.isInTheWay(&corev1.Secret{
		Namespace: s.namespace, Name: name, Labels: podspec.Labels(&metav1.ObjectMeta{Name: "app"}),
		Type: corev1.SecretTypeTLS, Data: known,
	}, "Secret "+name+" exists already and was not made for this workspace")

	made := &corev1.Secret{}
	s.Expect(s.get(name, made)).To(Succeed())
	s.Expect(metav1.IsControlledBy(made, workspace)).To(BeTrue())
	s.Expect(made.Data[corev1.TLSPrivateKeyKey]).NotTo(Equal(known[corev1.TLSPrivateKeyKey]))
}

// An object that has the labels of the Workspace, or that the Pulumi Kubernetes Operator applied, is adopted. An object with the labels of
// another Workspace is not.
func TestOnlyWhatWasMadeForTheWorkspaceIsAdopted(t *testing.T) {
	workspace := &autov1alpha1.Workspace{Namespace: "team", Name: "app", UID: "1"}
	applied := func(manager string, operation metav1.ManagedFieldsOperationType) *corev1.Service {
		return &corev1.Service{Name: "app-workspace", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: manager, Operation: operation}}}
	}
	labelled := func(name string) *corev1.Service {
		return &corev1.Service{Name: "app-workspace", Labels: podspec.Labels(&metav1.ObjectMeta{Name: name})}
	}
	for name, test := range map[string]struct {
		object  *corev1.Service
		adopted bool
	}{
		"our labels":             {labelled("app"), true},
		"labels of another one":  {labelled("other"), false},
		"applied by the peer":    {applied(formerOwner, metav1.ManagedFieldsOperationApply), true},
		"edited by the peer":     {applied(formerOwner, metav1.ManagedFieldsOperationUpdate), false},
		"applied by another one": {applied("helm", metav1.ManagedFieldsOperationApply), false},
		"nothing":                {&corev1.Service{Name: "app-workspace"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := checkOwner(workspace, "Service", test.object)
			if test.adopted {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			var conflict *conflictError
			g.Expect(errors.As(err, &conflict)).To(BeTrue())
			g.Expect(conflict.ending).To(BeFalse())
		})
	}
}
