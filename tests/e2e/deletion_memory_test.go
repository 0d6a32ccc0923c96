package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The tests of this file run alone, before the parallel ones: they stop the controller.

// forgetUpdates removes the Updates of the namespace, as time does, and their finalizers.
func forgetUpdates(t *testing.T, g *WithT, namespace string) {
	t.Helper()
	for _, update := range updates(t.Context(), g, namespace) {
		before := update.DeepCopy()
		update.Finalizers = nil
		g.Expect(client.IgnoreNotFound(system.Client.Patch(t.Context(), &update, client.MergeFrom(before)))).To(Succeed())
		g.Expect(client.IgnoreNotFound(system.Client.Delete(t.Context(), &update))).To(Succeed())
	}
	g.Expect(updates(t.Context(), g, namespace)).To(BeEmpty())
}

func TestStackWhoseStatusWasClearedIsNotLetGoWithoutADestroy(t *testing.T) {
	g := NewWithT(t)
	const name = "deleted-statusless"
	stack, _ := deployed(t, g, name, destroyed)
	stopController(t, g)
	forgetUpdates(t, g, name)
	g.Expect(system.Client.Get(t.Context(), keyOf(name), stack)).To(Succeed())
	g.Expect(stack.Annotations).To(HaveKeyWithValue(pulumiv1.DeployedStackAnnotation, "dev"))
	stack.Status = pulumiv1.StackStatus{}
	g.Expect(system.Client.Status().Update(t.Context(), stack)).To(Succeed())
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	g.Expect(system.StartController(t.Context())).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

// restored replaces the Stack by what a backup without statuses and finalizers has of it, while the controller is stopped.
func restored(t *testing.T, g *WithT, name string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	t.Helper()
	old := &pulumiv1.Stack{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), old)).To(Succeed())
	backup := &pulumiv1.Stack{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name, Labels: old.Labels, Annotations: old.Annotations}, Spec: old.Spec,
	}
	before := old.DeepCopy()
	old.Finalizers = nil
	g.Expect(system.Client.Patch(t.Context(), old, client.MergeFrom(before))).To(Succeed())
	g.Expect(system.Client.Delete(t.Context(), old)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(t.Context(), keyOf(name), old))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
	forgetUpdates(t, g, name)
	awaitNoWorkspace(t, g, name)
	for _, edit := range changes {
		edit(backup)
	}
	g.Expect(system.Client.Create(t.Context(), backup)).To(Succeed())
	return backup
}

func TestStackThatWasRestoredWithoutStatusIsDestroyedWhenItIsDeleted(t *testing.T) {
	g := NewWithT(t)
	const name = "deleted-restored"
	deployed(t, g, name, destroyed)
	stopController(t, g)
	stack := restored(t, g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
	g.Expect(system.StartController(t.Context())).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), keyOf(name), stack)).To(Succeed())
		g.Expect(stack.Finalizers).To(ContainElement(pulumiv1.Finalizer))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	await(t.Context(), g, name, says(pulumiv1.SuspendedReason))
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = false })
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestStackThatWasRestoredWithoutItsBackendIsNotCreatedAgain(t *testing.T) {
	g := NewWithT(t)
	const name = "restored-lost"
	_, artifact := deployed(t, g, name, destroyed, retriedSoon)
	stopController(t, g)
	restored(t, g, name)
	bringBack := lose(g, name)
	g.Expect(system.StartController(t.Context())).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.StackLostReason))
	g.Expect(hasStack(name)).To(BeFalse())
	bringBack()
	await(t.Context(), g, name, ready(artifact.Digest))
}

func TestStackThatNeverDeployedAnythingGoesThoughItsStackExists(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-new"
	first, _ := deployed(t, g, name)
	// Another Stack of the same stack that never ran: what it did not make is not its to destroy.
	second := layer(t, g, name, "second", destroyed, func(s *pulumiv1.Stack) { s.Spec.Stack, s.Spec.Suspend = first.Spec.Stack, true })
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(second), second)).To(Succeed())
		g.Expect(second.Finalizers).To(ContainElement(pulumiv1.Finalizer))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	g.Expect(system.Client.Delete(t.Context(), second)).To(Succeed())
	awaitLayersGone(t, g, name, name)
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
}
