package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// interruptedUpdates returns how many Updates of the namespace were ended from outside.
func (p *play) interruptedUpdates() (count int) {
	p.Helper()
	for _, update := range p.Updates() {
		if update.WasInterrupted() {
			p.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
			count++
		}
	}
	return count
}

func TestInterruptedUpdateIsRepeatedAtOnceAndIsNoFailure(t *testing.T) {
	p := begin(t, "interrupted")
	artifact := p.put(p.returning(1))
	release := p.hold()
	p.start(artifact, retriedLate)
	p.awaitRuns("up", 1)
	p.KillAgent()
	p.awaitRuns("up", 2)
	stack := p.Await(func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate != nil && s.Status.CurrentUpdate != nil })
	p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	p.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(1))
	p.Expect(stack.Status.LastUpdate.Message).To(ContainSubstring("the agent ended while pulumi ran"))
	p.Expect(stack.Status.History[0].LastReconciledStatus).To(Equal("interrupted"))
	release()

	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	p.Expect(p.interruptedUpdates()).To(Equal(1))
	p.Expect(p.Updates()).To(HaveLen(2))
	p.Expect(p.events("StackUpdateInterrupted")).To(ConsistOf(ContainSubstring("will be repeated")))
	p.Expect(p.events("StackUpdateFailure")).To(BeEmpty())
}

func TestInterruptionsInARowAreNoHotLoop(t *testing.T) {
	suite.Long(t, "further interruptions")
	p := begin(t, "interrupted-often")
	artifact := p.put(p.returning(1))
	release := p.hold()
	p.start(artifact)
	for i := range 4 {
		p.awaitRuns("up", i+1)
		p.KillAgent()
	}
	stack := p.Await(notReady(pulumiv1.UpdateInterruptedReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("up was interrupted 4 times in a row, next attempt in"))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	release()
	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	p.Expect(p.interruptedUpdates()).To(Equal(4))
}

func TestInterruptedDestroyIsRepeated(t *testing.T) {
	suite.Long(t, "further interruptions")
	p := begin(t, "destroy-interrupted")
	p.deployed(destroyed)
	release := p.hold()
	p.Delete()
	p.awaitRuns("destroy", 1)
	p.KillAgent()
	p.awaitRuns("destroy", 2)
	p.Expect(p.interruptedUpdates()).To(Equal(1))
	release()
	p.awaitDestroyed()
}

func TestWorkspaceIsNotReclaimedUnderAnUpdateOfSomebodyElse(t *testing.T) {
	suite.Long(t, "further interruptions")
	p := begin(t, "shared")
	release := p.hold()
	artifact := p.put(p.returning(1))
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete })
	p.awaitRuns("up", 1)
	byHand := p.handmade(autov1alpha1.UpdateTypeUp)
	p.awaitUpdate(byHand, func(u *autov1alpha1.Update) bool { return u.Status.State == autov1alpha1.UpdateStateQueued })
	release()
	p.Await(ready(artifact.Digest))
	p.awaitSuccess(byHand)
}
