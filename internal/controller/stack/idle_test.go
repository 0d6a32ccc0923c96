package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Each state of a dependency leaves a Stack ready that has nothing to update. What is suspended holds nothing up.
func TestIdleStackStaysReadyWhateverItsDependenciesDo(t *testing.T) {
	s := newFixture(t)
	base := s.dependent("base")
	s.succeed(base, time.Now())
	middle := s.dependent("middle", dependsOn("base", ""))
	s.succeed(middle, time.Now())
	top := s.dependent("top", requires("middle"))
	s.succeed(top, time.Now())
	staysReady := func(why string, stacks ...*pulumiv1.Stack) {
		t.Helper()
		s.Consistently(func(g Gomega) {
			for _, stack := range stacks {
				g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
				g.Expect(conditions.IsReady(stack)).To(BeTrue(), "%s: %s", why, stack.Name)
				g.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation))
			}
		}, "500ms").Should(Succeed())
	}
	s.edit(base, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	base = s.await(base, func(stack *pulumiv1.Stack) bool { return stack.Status.ObservedGeneration == stack.Generation })
	staysReady("suspended", base, middle, top)
	s.edit(middle, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, "now")
	})
	s.await(middle, working) // although base is suspended
	staysReady("a dependency runs a requested update", top)
	s.succeed(middle, time.Now())
	s.Expect(s.client.Delete(t.Context(), base)).To(Succeed())
	s.Eventually(func() bool {
		return apierrors.IsNotFound(s.client.Get(t.Context(), client.ObjectKeyFromObject(base), base))
	}).Should(BeTrue())
	staysReady("gone", middle, top)
	s.edit(middle, withImage("two"))
	s.await(middle, notUpdated(pulumiv1.DependencyNotReadyReason, "base does not exist"))
}
