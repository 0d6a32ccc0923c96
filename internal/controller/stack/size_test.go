package stack

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// manySmallParts is a list of 300,000 numbers, 600 kB of JSON. It counts as more than 4 MiB, both as JSON and as a value. The API server
// reads it faster than a list of objects.
func manySmallParts() *apiextensionsv1.JSON {
	return &apiextensionsv1.JSON{Raw: []byte("[" + strings.Repeat("0,", 300_000) + "0]")}
}

func TestStackOfVeryManySmallPartsIsRefusedAndRecovers(t *testing.T) {
	s := newFixture(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	s.edit(stack, func(stack *pulumiv1.Stack) {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"app:list": *manySmallParts()}
	})
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.IsStalled(stack)).To(BeTrue())
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(ContainSubstring("takes more than 4 MiB of memory"))
	s.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation))
	s.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "the rest of the status stays")
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Config = nil })
	s.Eventually(func() bool {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		return !conditions.IsStalled(stack)
	}).Should(BeTrue())
}

func TestStackShowsThatItsWorkspaceIsTooLarge(t *testing.T) {
	suite.Long(t, "another object than in TestStackShowsThatWhatItDependsOnIsTooLarge")
	s := newFixture(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	setStacks := func(stacks ...autov1alpha1.WorkspaceStack) {
		workspace := s.workspace()
		before := workspace.DeepCopy()
		workspace.Spec.Stacks = stacks
		s.Expect(s.client.Patch(t.Context(), workspace, client.MergeFrom(before))).To(Succeed())
	}
	setStacks(autov1alpha1.WorkspaceStack{Name: "other", Config: []autov1alpha1.ConfigItem{{Key: "app:list", Value: manySmallParts()}}})
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(HavePrefix("Workspace " + s.namespace + "/app takes more than 4 MiB of memory"))
	setStacks()
	s.await(stack, func(stack *pulumiv1.Stack) bool { return !conditions.IsStalled(stack) })
}

func TestStackShowsThatWhatItDependsOnIsTooLarge(t *testing.T) {
	s := newFixture(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	large := &pulumiv1.Stack{Namespace: s.namespace, Name: "large"}
	large.Spec.Stack, large.Spec.Config = "large", map[string]apiextensionsv1.JSON{"app:list": *manySmallParts()}
	s.Expect(s.client.Create(t.Context(), large)).To(Succeed())
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "large"}} })
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(stack, meta.StalledCondition)).To(HavePrefix("Stack " + s.namespace + "/large takes more than 4 MiB of memory"))
	s.Expect(s.client.Delete(t.Context(), large)).To(Succeed())
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.DependencyNotReadyReason))
}
