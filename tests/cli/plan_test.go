package cli_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

func TestPlanIsShown(t *testing.T) {
	golden(t, "plan-show", 0, "plan", "show", "portal", "-n", recorded)
}

func TestPlansAreDecidedOnTheCommandLine(t *testing.T) {
	p := begin(t, "plans")
	p.says(1, "plan show plans", `the Stack "plans" has no plan`)
	p.InstallProvider(p.Name)
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Approval = &pulumiv1.ApprovalPolicy{} })
	pending := func(s *pulumiv1.Stack) bool {
		return s.Status.Plan != nil && s.Status.Plan.State == pulumiv1.PlanPending && s.Status.CurrentUpdate == nil
	}
	p.commit(pair(p.Name, "a", "old"))
	p.says(3, "reconcile stack plans --with-source", "waits for approval")
	plan := p.Await(pending).Status.Plan

	p.says(2, "plan approve plans", "say which plan with --digest")
	p.says(3, "plan approve plans --digest sha256:other", "is another one by now")
	answer := ask(p.Scene, "plan", "show", p.Name, "--diff")
	p.Expect(answer.code).To(BeZero(), answer.err)
	p.Expect(answer.out).To(And(ContainSubstring(plan.Digest), ContainSubstring(`+ content: "a"`)))
	p.says(0, "plan reject plans --digest "+plan.Digest, "created Approval", "is rejected")
	p.Await(func(s *pulumiv1.Stack) bool { return conditions.GetReason(s, "Ready") == pulumiv1.PlanRejectedReason })
	p.Expect(ask(p.Scene, "explain", "stack", p.Name).out).To(ContainSubstring("PlanRejected"))

	p.commit(pair(p.Name, "b", "old"))
	p.says(3, "reconcile stack plans --with-source", "waits for approval")
	plan = p.Await(func(s *pulumiv1.Stack) bool { return pending(s) && s.Status.Plan.Name != plan.Name }).Status.Plan
	p.says(0, "plan approve plans --reason CHG-42 --digest "+plan.Digest, "created Approval", "is approved (+2 ~0 +-0 -0)")
	stack := p.Await(scene.Showing(`"b"`))
	p.Expect(stack.Status.Plan.Approvals).To(HaveExactElements(HaveField("Reason", "CHG-42")))
}
