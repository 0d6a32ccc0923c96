package stack

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// manySmallParts is a list of 400,000 empty items, which fits into an object, and takes 29 MB in each copy.
func manySmallParts() *autov1alpha1.EmbeddedPodTemplateSpec {
	return &autov1alpha1.EmbeddedPodTemplateSpec{
		Spec: &autov1alpha1.EmbeddedPodSpec{PodSpec: corev1.PodSpec{Tolerations: make([]corev1.Toleration, 400_000)}}}
}

// edit changes the object as it is on the API server.
func edit[T client.Object](s *stage, named T, change func(T)) {
	s.t.Helper()
	s.Eventually(func() error {
		now := named.DeepCopyObject().(T)
		if err := s.client.Get(s.t.Context(), client.ObjectKeyFromObject(named), now); err != nil {
			return err
		}
		change(now)
		return s.client.Update(s.t.Context(), now)
	}).Should(Succeed())
}

func TestStackOfVeryManySmallPartsIsRefusedAndRecovers(t *testing.T) {
	s := newStage(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	edit(s, stack, func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PodTemplate: manySmallParts()}}
	})
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.IsStalled(stack)).To(BeTrue())
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(ContainSubstring("takes more than 4 MiB of memory"))
	s.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation))
	s.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "the rest of the status stays")
	edit(s, stack, func(stack *pulumiv1.Stack) { stack.Spec.WorkspaceTemplate = nil })
	s.Eventually(func() bool {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		return !conditions.IsStalled(stack)
	}).Should(BeTrue())
}

func TestStackShowsThatItsWorkspaceIsTooLarge(t *testing.T) {
	s := newStage(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	workspace := s.workspace()
	edit(s, workspace, func(workspace *autov1alpha1.Workspace) { workspace.Spec.PodTemplate = manySmallParts() })
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(HavePrefix("Workspace app takes more than 4 MiB of memory"))
	edit(s, workspace, func(workspace *autov1alpha1.Workspace) { workspace.Spec.PodTemplate = nil })
	s.await(stack, func(stack *pulumiv1.Stack) bool { return !conditions.IsStalled(stack) })
}
