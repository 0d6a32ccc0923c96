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

// A list of 400,000 empty items fits into a Stack, and takes 29 MB in each copy.
func TestStackOfVeryManySmallPartsIsRefusedAndRecovers(t *testing.T) {
	s := newStage(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	edit := func(change func(*pulumiv1.Stack)) {
		s.Eventually(func() error {
			now := &pulumiv1.Stack{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), now); err != nil {
				return err
			}
			change(now)
			return s.client.Update(t.Context(), now)
		}).Should(Succeed())
	}
	edit(func(stack *pulumiv1.Stack) {
		pod := &autov1alpha1.EmbeddedPodSpec{PodSpec: corev1.PodSpec{Tolerations: make([]corev1.Toleration, 400_000)}}
		stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
			PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: pod}}}
	})
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.IsStalled(stack)).To(BeTrue())
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(ContainSubstring("takes more than 4 MiB of memory"))
	s.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation))
	s.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "the rest of the status stays")
	edit(func(stack *pulumiv1.Stack) { stack.Spec.WorkspaceTemplate = nil })
	s.Eventually(func() bool {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		return !conditions.IsStalled(stack)
	}).Should(BeTrue())
}
