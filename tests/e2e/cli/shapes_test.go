package cli_test

import (
	"regexp"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
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
	remote := p.remote()
	rollout := &autov1alpha1.StackRollout{ObjectMeta: p.Meta("all"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: p.Name}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
		AllowedNamespaces: &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll},
	}}
	p.Create(rollout)
	join := func(s *pulumiv1.Stack) {
		s.Spec.Approval, s.Spec.RolloutRef = &pulumiv1.ApprovalPolicy{}, &pulumiv1.RolloutReference{Name: "all", Namespace: p.Name}
	}
	p.ChangeStack(p.Name, join)
	p.ChangeStack("other", join)
	remote.ChangeStack("remote", join)
	p.says(0, "rollout plans all", "no plan of StackRollout all waits for approval")
	files := pair(p.Name, "b", "new")
	files["notes"] = "not in the artifact of the other source"
	p.commit(files)
	p.Succeed(system.Fetch(p.Context(), p.app))
	p.Succeed(system.Fetch(p.Context(), &localsystem.App{Namespace: remote.Name, Name: p.Name}))
	pending := func(s *pulumiv1.Stack) bool {
		return s.Status.Plan != nil && s.Status.Plan.State == pulumiv1.PlanPending && s.Status.CurrentUpdate == nil
	}
	p.AwaitStack(p.Name, pending)
	p.AwaitStack("other", pending)
	p.Expect(remote.AwaitStack("remote", pending).Status.Plan.Commit).NotTo(Equal(p.AwaitStack(p.Name, pending).Status.Plan.Commit))
	var shape string
	p.Eventually(func(g Gomega) {
		answer := ask(p.Fixture, "rollout", "plans", "all")
		g.Expect(answer.code).To(BeZero(), answer.err)
		g.Expect(answer.out).To(And(MatchRegexp(`3 Stacks +shapes\S*/(shapes|other|remote), `), MatchRegexp(`\+ +2 +test:index:Sleep`)))
		shape = regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(answer.out)
	}).Should(Succeed())
	p.says(2, "rollout approve all", "say which plans with --shape")
	p.says(3, "rollout approve all --shape sha256:other", "no plan that waits for approval has this shape")

	// Somebody who may decide in one of the namespaces only, and at first may not see what is in the other one.
	p.allow("approver", autov1alpha1.GroupVersion.Group, []string{"stackrollouts", "updates"}, "get")
	p.allow("approver", autov1alpha1.GroupVersion.Group, []string{"approvals"}, "create", "get")
	p.allow("approver", pulumiv1.GroupVersion.Group, []string{"stacks"}, "get")
	answer := ask(p.Fixture, "rollout", "plans", "all", "--as", "approver")
	p.Expect(answer.out).To(ContainSubstring("2 Stacks"))
	p.Expect(answer.err).To(ContainSubstring("⚠ shapes-remote/remote: read Stack shapes-remote/remote: you are not allowed to"))
	p.allowIn(remote.Name, "approver", pulumiv1.GroupVersion.Group, []string{"stacks"}, "get")
	p.allowIn(remote.Name, "approver", autov1alpha1.GroupVersion.Group, []string{"updates"}, "get")
	answer = ask(p.Fixture, "rollout", "approve", "all", "--shape", shape, "--reason", "CHG-42", "--as", "approver")
	p.Expect(answer.code).To(Equal(3), answer.err)
	p.Expect(answer.err).To(And(ContainSubstring("✔ plan of shapes/shapes is approved"), ContainSubstring("✔ plan of shapes/other is approved"),
		ContainSubstring("⚠ shapes-remote/remote: create Approval: you are not allowed to"), HaveSuffix("✗ 1 of 3 plans are not approved\n")))
	applied := func(s *pulumiv1.Stack) bool { return s.Status.Plan.State == pulumiv1.PlanApplied }
	for _, name := range []string{p.Name, "other"} {
		p.Expect(p.AwaitStack(name, applied).Status.Plan.Approvals).To(ConsistOf(And(HaveField("Reason", "CHG-42"), HaveField("By", "approver"))))
	}
	p.Expect(remote.AwaitStack("remote", pending).Status.Plan.Approvals).To(BeEmpty())

	p.says(0, "rollout approve all --shape "+shape, "plan of shapes-remote/remote is approved")
	remote.AwaitStack("remote", applied)
}

// remote returns a fixture for another namespace, with a source of the same repository that packs less of it, and a ready Stack.
func (p *fixture) remote() *systemtest.Fixture {
	p.Helper()
	remote := systemtest.New(p.T, system, p.Name+"-remote", systemtest.Patience)
	source := &sourcev1.GitRepository{}
	p.Get(p.Name, source)
	source.Spec.Ignore = new("/notes")
	stack := system.NewStack(remote.Name, "remote", sourcev1.GitRepositoryKind)
	stack.Spec.Stack, stack.Spec.FluxSource.SourceRef.Name = "remote", p.Name
	remote.Enter(map[string]string{localsystem.PassphraseKey: "another horse"},
		&sourcev1.GitRepository{ObjectMeta: remote.Meta(source.Name), Spec: source.Spec}, stack)
	remote.AwaitStack("remote", systemtest.Showing("1"))
	remote.InstallProvider("remote")
	return remote
}
