package stack

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// manySmallParts is a list of 400,000 empty items, which fits into an object, and takes 29 MB in each copy.
func manySmallParts() *autov1alpha1.EmbeddedPodTemplateSpec {
	return &autov1alpha1.EmbeddedPodTemplateSpec{
		Spec: &autov1alpha1.EmbeddedPodSpec{PodSpec: corev1.PodSpec{Tolerations: make([]corev1.Toleration, 400_000)}}}
}

func TestStackOfVeryManySmallPartsIsRefusedAndRecovers(t *testing.T) {
	suite.WithoutRaceDetector(t)
	s := newStage(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	s.edit(stack, func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PodTemplate: manySmallParts()}}
	})
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.IsStalled(stack)).To(BeTrue())
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(ContainSubstring("takes more than 4 MiB of memory"))
	s.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation))
	s.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "the rest of the status stays")
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.WorkspaceTemplate = nil })
	s.Eventually(func() bool {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		return !conditions.IsStalled(stack)
	}).Should(BeTrue())
}

func TestStackShowsThatItsWorkspaceIsTooLarge(t *testing.T) {
	s := newStage(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	setPod := func(pod *autov1alpha1.EmbeddedPodTemplateSpec) {
		workspace := s.workspace()
		before := workspace.DeepCopy()
		workspace.Spec.PodTemplate = pod
		s.Expect(s.client.Patch(t.Context(), workspace, client.MergeFrom(before))).To(Succeed())
	}
	setPod(manySmallParts())
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(HavePrefix("Workspace " + s.namespace + "/app takes more than 4 MiB of memory"))
	setPod(nil)
	s.await(stack, func(stack *pulumiv1.Stack) bool { return !conditions.IsStalled(stack) })
}

func TestStackShowsThatWhatItDependsOnIsTooLarge(t *testing.T) {
	s := newStage(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	large := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "large"}}
	large.Spec.Stack, large.Spec.WorkspaceTemplate = "large", &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PodTemplate: manySmallParts()}}
	s.Expect(s.client.Create(t.Context(), large)).To(Succeed())
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.DependsOn = []meta.DependencyReference{{Name: "large"}} })
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(HavePrefix("Stack " + s.namespace + "/large takes more than 4 MiB of memory"))
	s.Expect(s.client.Delete(t.Context(), large)).To(Succeed())
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.DependencyNotReadyReason))
}
