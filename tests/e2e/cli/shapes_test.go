package cli_test

import (
	"regexp"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

func TestPlansThatDoTheSameAreApprovedTogether(t *testing.T) {
	suite.Long(t, "real plans of two Stacks; see rollout-plans in TestTablesShowWhatTheObjectsSay")
	p := begin(t, "shapes")
	p.InstallProvider(p.Name)
	other := system.NewStack(p.Name, "other", sourcev1.GitRepositoryKind)
	other.Spec.Stack, other.Spec.FluxSource.SourceRef.Name = "other", p.Name
	p.Create(other)
	p.AwaitStack("other", systemtest.Showing("1"))
	p.InstallProvider("other")
	rollout := &autov1alpha1.StackRollout{ObjectMeta: p.Meta("all"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: p.Name}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
	}}
	p.Create(rollout)
	for _, name := range []string{p.Name, "other"} {
		p.ChangeStack(name, func(s *pulumiv1.Stack) {
			s.Spec.Approval, s.Spec.RolloutRef = &pulumiv1.ApprovalPolicy{}, &pulumiv1.RolloutReference{Name: "all"}
		})
	}
	p.says(0, "rollout plans all", "no plan of StackRollout all waits for approval")
	p.commit(pair(p.Name, "b", "new"))
	p.Succeed(system.Fetch(p.Context(), p.app))
	for _, name := range []string{p.Name, "other"} {
		p.AwaitStack(name, func(s *pulumiv1.Stack) bool {
			return s.Status.Plan != nil && s.Status.Plan.State == pulumiv1.PlanPending && s.Status.CurrentUpdate == nil
		})
	}
	var shape string
	p.Eventually(func(g Gomega) {
		answer := ask(p.Fixture, "rollout", "plans", "all")
		g.Expect(answer.code).To(BeZero(), answer.err)
		g.Expect(answer.out).To(And(MatchRegexp(`2 Stacks +shapes/(shapes|other), shapes/(shapes|other)`), MatchRegexp(`\+ +2 +test:index:Sleep`)))
		shape = regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(answer.out)
	}).Should(Succeed())
	p.says(2, "rollout approve all", "say which plans with --shape")
	p.says(3, "rollout approve all --shape sha256:other", "no plan that waits for approval has this shape")
	p.says(0, "rollout approve all --shape "+shape+" --reason CHG-42", "plan of shapes/", "is approved", "plan of shapes/", "is approved")
	for _, name := range []string{p.Name, "other"} {
		stack := p.AwaitStack(name, func(s *pulumiv1.Stack) bool { return s.Status.Plan.State == pulumiv1.PlanApplied })
		p.Expect(stack.Status.Plan.Approvals).To(ConsistOf(HaveField("Reason", "CHG-42")))
	}
}
