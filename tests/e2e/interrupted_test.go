package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The tests of this file run alone, before the parallel ones: they hold pulumi.

// interruptedUpdates returns how many Updates of the namespace were ended from outside.
func interruptedUpdates(t *testing.T, g *WithT, namespace string) int {
	count := 0
	for _, update := range updates(t.Context(), g, namespace) {
		if update.WasInterrupted() {
			g.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
			count++
		}
	}
	return count
}

func TestInterruptedUpdateIsRepeatedAtOnceAndIsNoFailure(t *testing.T) {
	g := NewWithT(t)
	const name = "interrupted"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	release := pulumi.hold(g)
	defer release()
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour}
	})).To(Succeed())
	awaitRuns(g, name, "up", 1)
	killAgent(g, name)
	awaitRuns(g, name, "up", 2)
	stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate != nil && s.Status.CurrentUpdate != nil })
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(1))
	g.Expect(stack.Status.LastUpdate.Message).To(ContainSubstring("the agent ended while pulumi ran"))
	g.Expect(stack.Status.History[0].LastReconciledStatus).To(Equal("interrupted"))
	release()

	stack = await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	g.Expect(interruptedUpdates(t, g, name)).To(Equal(1))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2))
	g.Expect(eventsOf(t.Context(), g, name, "StackUpdateInterrupted")).To(ConsistOf(ContainSubstring("will be repeated")))
	g.Expect(eventsOf(t.Context(), g, name, "StackUpdateFailure")).To(BeEmpty())
}

func TestInterruptionsInARowAreNoHotLoop(t *testing.T) {
	g := NewWithT(t)
	const name = "interrupted-often"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	release := pulumi.hold(g)
	defer release()
	g.Expect(start(t.Context(), name, artifact)).To(Succeed())
	for i := range 4 {
		awaitRuns(g, name, "up", i+1)
		killAgent(g, name)
	}
	stack := await(t.Context(), g, name, notReady(pulumiv1.UpdateInterruptedReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("up was interrupted 4 times in a row, next attempt in"))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	release()
	stack = await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	g.Expect(interruptedUpdates(t, g, name)).To(Equal(4))
}

func TestInterruptedDestroyIsRepeated(t *testing.T) {
	g := NewWithT(t)
	const name = "destroy-interrupted"
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true })
	release := pulumi.hold(g)
	defer release()
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitRuns(g, name, "destroy", 1)
	killAgent(g, name)
	awaitRuns(g, name, "destroy", 2)
	g.Expect(interruptedUpdates(t, g, name)).To(Equal(1))
	release()
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestWorkspaceIsNotReclaimedUnderAnUpdateOfSomebodyElse(t *testing.T) {
	g := NewWithT(t)
	const name = "shared"
	release := pulumi.hold(g)
	defer release()
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete
	})).To(Succeed())
	awaitRuns(g, name, "up", 1)
	byHand := handmade(name, autov1alpha1.UpdateTypeUp)
	g.Expect(system.Client.Create(t.Context(), byHand)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(byHand), byHand)).To(Succeed())
		g.Expect(byHand.Status.State).To(Equal(autov1alpha1.UpdateStateQueued))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	release()
	await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(awaitEnd(t.Context(), g, byHand).HasFailed()).To(BeFalse(), byHand.Status.Message)
}
