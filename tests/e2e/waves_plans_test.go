package e2e_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// guardedFleet deploys a StackRollout with the canary first, and with further Stacks that need approvals from then on.
func guardedFleet(p *fixture, names ...string) *resourceFixture {
	p.Helper()
	rollout, stacks := p.fleet(append([]string{"canary"}, names...)...)
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout)
	for _, stack := range stacks {
		p.Create(stack)
	}
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, p.publish(p.returning(0)).Revision)
	for _, stack := range stacks {
		p.InstallProvider(stack.Name)
		if stack.Name != "canary" {
			p.ChangeStack(stack.Name, needsApproval())
		}
	}
	return &resourceFixture{fixture: p, dir: p.TempDir()}
}

// fleetWith returns a program with one resource that has the content.
func (r *resourceFixture) fleetWith(content string) gitserver.Files {
	properties := fmt.Sprintf("seconds: 0, file: \"%s-${pulumi.stack}\", content: %s", r.file("first"), content)
	return r.yaml(append([]string{"resources:"}, r.sleep("first", properties, "")...)...)
}

// planned waits until a plan with the revision waits for its approval.
func (r *resourceFixture) planned(name, revision string) *pulumiv1.Stack {
	r.Helper()
	return r.AwaitStack(name, func(s *pulumiv1.Stack) bool { return waits(s) && s.Status.Plan.Revision == revision })
}

func TestPlansOfAWaveAreApprovedBeforeItsTurns(t *testing.T) {
	p := guardedFleet(begin(t, "waves-plans"), "east", "west")
	first := p.publish(p.fleetWith("one"))
	east, west := p.planned("east", first.Revision), p.planned("west", first.Revision)
	p.Eventually(func() string { return conditions.GetMessage(p.rollout(), "Ready") }).Should(Equal("wave rest waits: the plans of 2 of its Stacks are not approved"))
	p.Expect(p.rollout().Status.Turns).To(BeEmpty(), "a plan that waits takes no place")
	p.Expect(p.rollout().Status.Plans).To(ConsistOf(p.Name+"/east", p.Name+"/west"))
	p.approve(west)
	p.AwaitStack("west", ready(first.Digest))
	p.Expect(p.order(first.Revision)).NotTo(ContainElement("east"))
	p.approve(east)
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)
}

// A plan of a revision that another one has replaced is not carried out, and leads to nothing with the revision that the Stack has.
func TestPlansOfAWaveAreSupersededByTheNextRevision(t *testing.T) {
	suite.Long(t, "a commit while plans wait, as in the walks of internal/controller/rollout")
	p := guardedFleet(begin(t, "waves-replaced"), "east")
	first := p.publish(p.fleetWith("one"))
	p.approve(p.planned("east", first.Revision))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)

	second := p.publish(p.fleetWith("two"))
	p.planned("east", second.Revision)
	release := p.holdStack("canary")
	third := p.publish(p.fleetWith("three"))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, third.Revision)
	stack := p.AwaitStack("east", ready(first.Digest))
	p.Expect(stack.Status.Plan.State).To(Equal(pulumiv1.PlanSuperseded))
	release()
	p.approve(p.planned("east", third.Revision))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, third.Revision)
	ups := map[string]int{}
	for _, update := range p.Updates() {
		if !update.ChangesNothing() && update.Spec.Source.Revision != third.Revision {
			ups[update.Spec.WorkspaceName+" "+update.Spec.Source.Revision]++
		}
	}
	p.Expect(ups).To(HaveEach(1), "nothing was updated to what it had")
	p.Expect(ups).NotTo(HaveKey("east " + second.Revision))
}
