package e2e_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestPlansOfAWaveAreApprovedBeforeItsTurns(t *testing.T) {
	p := begin(t, "waves-plans")
	rollout, stacks := p.fleet("canary", "east", "west")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1], stacks[2])
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, p.publish(p.returning(0)).Revision)
	for _, stack := range stacks {
		p.InstallProvider(stack.Name)
		if stack.Name != "canary" {
			p.ChangeStack(stack.Name, needsApproval())
		}
	}
	r := &resourceFixture{fixture: p, dir: p.TempDir()}
	with := func(content string) []string {
		return append([]string{"resources:"}, r.sleep("first", fmt.Sprintf("seconds: 0, file: \"%s-${pulumi.stack}\", content: %s", r.file("first"), content), "")...)
	}
	planned := func(name, revision string) *pulumiv1.Stack {
		return p.AwaitStack(name, func(s *pulumiv1.Stack) bool { return waits(s) && s.Status.Plan.Revision == revision })
	}
	first := p.publish(p.yaml(with("one")...))
	east, west := planned("east", first.Revision), planned("west", first.Revision)
	p.Eventually(func() string { return conditions.GetMessage(p.rollout(), "Ready") }).Should(Equal("wave rest waits: the plans of 2 of its Stacks are not approved"))
	p.Expect(p.rollout().Status.Turns).To(BeEmpty(), "a plan that waits takes no place")
	p.Expect(p.rollout().Status.Plans).To(ConsistOf(p.Name+"/east", p.Name+"/west"))
	r.approve(west)
	p.AwaitStack("west", ready(first.Digest))
	p.Expect(p.order(first.Revision)).NotTo(ContainElement("east"))
	r.approve(east)
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)

	// A plan of a revision that another one has replaced is not carried out, and leads to nothing with the revision that the Stack has.
	second := p.publish(p.yaml(with("two")...))
	planned("east", second.Revision)
	planned("west", second.Revision)
	release := p.holdStack("canary")
	third := p.publish(p.yaml(with("three")...))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, third.Revision)
	for _, name := range []string{"east", "west"} {
		stack := p.AwaitStack(name, ready(first.Digest))
		p.Expect(stack.Status.Plan.State).To(Equal(pulumiv1.PlanSuperseded))
	}
	release()
	r.approve(planned("east", third.Revision))
	r.approve(planned("west", third.Revision))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, third.Revision)
	ups := map[string]int{}
	for _, update := range p.Updates() {
		if !update.ChangesNothing() && update.Spec.Source.Revision != third.Revision {
			ups[update.Spec.WorkspaceName+" "+update.Spec.Source.Revision]++
		}
	}
	p.Expect(ups).To(HaveEach(1), "nothing was updated to what it had")
	p.Expect(ups).NotTo(Or(HaveKey("east "+second.Revision), HaveKey("west "+second.Revision)))
}
