package e2e_test

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestDriftThatNobodyExpectsIsLeftUntilSomebodyDecides(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := deployedThings(t, g, "drift", "", func(s *pulumiv1.Stack) {
		s.Spec.Refresh, s.Spec.ExpectNoRefreshChanges = true, true
		s.Spec.RetryInterval = &metav1.Duration{Duration: 2 * time.Second}
	})
	content := func() string {
		content, err := os.ReadFile(r.file("first"))
		g.Expect(err).NotTo(HaveOccurred())
		return string(content)
	}
	g.Expect(os.WriteFile(r.file("first"), []byte("theirs"), 0o600)).To(Succeed())
	before := checkpointOf(g, r.name)
	r.retry()
	stack := await(t.Context(), g, r.name, func(s *pulumiv1.Stack) bool {
		return conditions.IsStalled(s) && s.Status.LastUpdate.Failures >= 3
	})
	g.Expect(readyMessage(stack)).To(And(ContainSubstring("update test:index:Sleep first (content)"), ContainSubstring("expectNoRefreshChanges")))
	g.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.UnexpectedChangesReason))
	g.Expect(content()).To(Equal("theirs"))
	g.Expect(checkpointOf(g, r.name)).To(Equal(before), "each attempt finds it again, because none writes it down")

	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) { s.Spec.ExpectNoRefreshChanges = false })
	await(t.Context(), g, r.name, ready(""))
	g.Expect(content()).To(Equal("x"))
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) { s.Spec.ExpectNoRefreshChanges = true })
	await(t.Context(), g, r.name, ready(""))

	// What somebody undoes needs no edit.
	g.Expect(os.WriteFile(r.file("first"), []byte("theirs"), 0o600)).To(Succeed())
	r.retry()
	await(t.Context(), g, r.name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(os.WriteFile(r.file("first"), []byte("x"), 0o600)).To(Succeed())
	await(t.Context(), g, r.name, ready(""))
	g.Expect(r.deeds("first")).NotTo(ContainElement("delete start"))
}
