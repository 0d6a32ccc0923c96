package rollout

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func TestStackOfAnotherShardKeepsItsDependencies(t *testing.T) {
	f := newFleet(t)
	stack := f.stacks[0]
	stack.Spec.DependsOn, stack.Spec.Prerequisites = []pulumiv1.DependencyReference{{Name: "s1"}}, []pulumiv1.PrerequisiteRef{{Name: "s2"}}
	stack.Spec.Inputs = []autov1alpha1.Input{
		{Key: "url", Stack: &autov1alpha1.StackOutput{Name: "s3", Output: "url"}}, {Key: "name", Stack: &autov1alpha1.StackOutput{Name: "s3", Output: "name"}},
		{Key: "token", Secret: &autov1alpha1.KeyReference{Name: "s3", Key: "token"}},
		{Key: "vpc", Stack: &autov1alpha1.StackOutput{Name: "network", Namespace: "shared", Output: "vpc"}},
	}
	kept, err := CacheTransform(stack.DeepCopy())
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(kept.(*pulumiv1.Stack).Spec.Inputs).To(HaveLen(2), "one for each Stack")
	in := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	f.Expect(waves.Observe(kept.(*pulumiv1.Stack), f.rollout, &f.rollout.Status).DependsOn).To(Equal(
		[]types.NamespacedName{in("team", "s1"), in("team", "s2"), in("team", "s3"), in("shared", "network")}))
}
