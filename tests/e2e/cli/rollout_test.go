package cli_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// allow lets the user do this with objects of the group in the namespace of the fixture.
func (p *fixture) allow(user, group string, resources []string, verbs ...string) {
	p.Helper()
	p.allowIn(p.Name, user, group, resources, verbs...)
}

// allowIn is allow for another namespace.
func (p *fixture) allowIn(namespace, user, group string, resources []string, verbs ...string) {
	p.Helper()
	name := user + "." + group + "." + strings.Join(resources, "-")
	p.Create(
		&rbacv1.Role{Namespace: namespace, Name: name, Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: resources, Verbs: verbs}}},
		&rbacv1.RoleBinding{
			Namespace: namespace, Name: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})
}

// steered returns a fixture with a StackRollout of two waves, of which the second needs a promotion. The Stack with the name of the fixture is
// in the first wave, and the Stack "other" in the second.
func steered(t *testing.T, name string) *fixture {
	t.Helper()
	p := begin(t, name)
	p.says(1, "rollout promote all --revision sha1:other", `stackrollouts.auto.pulumi.com "all" not found`)
	other := system.NewStack(p.Name, "other", sourcev1.GitRepositoryKind)
	other.Spec.Stack, other.Spec.FluxSource.SourceRef.Name = "other", p.Name
	p.Create(other)
	p.AwaitStack("other", systemtest.Showing("1"))
	p.says(2, "rollout release other --revision sha1:other", `Stack "other" has no spec.rolloutRef: it gets each revision at once`)
	source := autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: p.Name}
	p.Create(&autov1alpha1.StackRollout{ObjectMeta: p.Meta("all"), Spec: autov1alpha1.StackRolloutSpec{SourceRef: source, Waves: []autov1alpha1.RolloutWave{
		{Name: "canary", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}},
		{Name: "rest", Promotion: autov1alpha1.PromoteManual},
	}}})
	for _, name := range []string{p.Name, "other"} {
		p.ChangeStack(name, func(stack *pulumiv1.Stack) {
			stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "all"}
			if name == p.Name {
				stack.Labels = map[string]string{"tier": "canary"}
			}
		})
	}
	p.awaitReason(autov1alpha1.RolloutCompleteReason)
	return p
}

// awaitReason waits until the condition Ready of the StackRollout has the reason, and returns the StackRollout.
func (p *fixture) awaitReason(reason string) *autov1alpha1.StackRollout {
	p.Helper()
	rollout := &autov1alpha1.StackRollout{}
	p.Eventually(func(g Gomega) {
		p.Get("all", rollout)
		g.Expect(conditions.GetReason(rollout, "Ready")).To(Equal(reason), conditions.GetMessage(rollout, "Ready"))
		g.Expect(rollout.Status.ObservedGeneration).To(Equal(rollout.Generation))
	}).Should(Succeed())
	return rollout
}

// waitsForItsSource expects that the StackRollout says what is wrong with its source, which does not exist: nobody has to touch the StackRollout itself.
// It creates the source, which is not ready at first. In the end it exists, and has no revision.
func (p *fixture) waitsForItsSource(name, source string) {
	p.Helper()
	says := func(reason, message string) {
		p.Helper()
		rollout := &autov1alpha1.StackRollout{}
		p.Eventually(func(g Gomega) {
			p.Get(name, rollout)
			g.Expect(conditions.GetReason(rollout, "Ready")).To(Equal(reason))
			g.Expect(conditions.GetMessage(rollout, "Ready")).To(HavePrefix(message))
			g.Expect(conditions.IsFalse(rollout, "Ready") && conditions.IsReconciling(rollout) && !conditions.IsStalled(rollout)).To(BeTrue())
		}).Should(Succeed())
	}
	says(pulumiv1.SourceNotFoundReason, "GitRepository "+p.Name+"/"+source+" does not exist")
	repository := &sourcev1.GitRepository{ObjectMeta: p.Meta(source), Spec: sourcev1.GitRepositorySpec{
		URL: p.app.Repository.URL, Interval: metav1.Duration{Duration: time.Hour}, Reference: &sourcev1.GitRepositoryRef{Branch: "nowhere"},
	}}
	p.Create(repository)
	says(pulumiv1.SourceNotReadyReason, "GitRepository "+p.Name+"/"+source+" is not ready: ")
}

// push commits a program with another output, and waits until it reached the first wave, and the second one waits for a promotion. It returns the revision.
func (p *fixture) push(value int) string {
	p.Helper()
	sha := p.commit(systemtest.Returning(p.Name, value))
	p.Succeed(system.Fetch(p.Context(), p.app))
	p.Eventually(func(g Gomega) {
		rollout := &autov1alpha1.StackRollout{}
		p.Get("all", rollout)
		g.Expect(rollout.Status.Target.Revision).To(HaveSuffix(sha))
		g.Expect(conditions.GetReason(rollout, "Ready")).To(Equal(autov1alpha1.PromotionRequiredReason))
	}).Should(Succeed())
	return "main@sha1:" + sha
}

// decisions returns what the Approvals of the fixture say.
func (p *fixture) decisions() (all []autov1alpha1.ApprovalSpec) {
	p.Helper()
	list := &autov1alpha1.ApprovalList{}
	p.Succeed(system.Client.List(p.Context(), list, client.InNamespace(p.Name)))
	for i := range list.Items {
		p.Expect(list.Items[i].Name).To(HavePrefix("all-"))
		all = append(all, list.Items[i].Spec)
	}
	return all
}

func TestRevisionIsPromotedAndRejectedOnTheCommandLine(t *testing.T) {
	p := steered(t, "promoted")
	p.Create(&autov1alpha1.StackRollout{ObjectMeta: p.Meta("empty"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: "nobody"}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
	}})
	p.waitsForItsSource("empty", "nobody")
	p.says(3, "rollout promote empty --all --revision sha1:other", `StackRollout "empty" has no revision yet`)
	p.says(3, "rollout promote all --revision sha1:other", `StackRollout "all" does not wait for a promotion: `, "name a wave with --wave, or use --all")

	revision := p.push(2)
	p.says(2, "rollout promote all", "without a terminal, say which revision with --revision")
	p.says(2, "rollout reject all", "without a terminal, say which revision with --revision")
	p.says(2, "rollout promote all --all --wave rest --revision "+revision, "--all goes without --wave")
	p.says(3, "rollout promote all --revision main@sha1:0123456789012345678901234567890123456789",
		`StackRollout "all" rolls out another revision by now: `+revision)
	p.says(1, "rollout promote all --as nobody --revision "+revision, "read StackRollout promoted/all: you are not allowed to")
	p.allow("reader", autov1alpha1.GroupVersion.Group, []string{"stackrollouts"}, "get")
	for _, verb := range []string{"promote", "reject"} {
		p.says(1, "rollout "+verb+" all --as reader --revision "+revision, "create Approval: you are not allowed to")
	}
	p.Expect(p.decisions()).To(BeEmpty(), "nothing was decided")
	p.says(3, "rollout promote all --wave nobody --revision "+revision, "created Approval all-", "the Approval does not count", `has no wave "nobody"`)
	p.awaitReason(autov1alpha1.PromotionRequiredReason)

	p.allow("approver", autov1alpha1.GroupVersion.Group, []string{"stackrollouts"}, "get")
	p.allow("approver", autov1alpha1.GroupVersion.Group, []string{"approvals"}, "create", "get")
	p.says(0, "rollout promote all --as approver --reason CHG-7 --revision "+revision,
		"► created Approval all-", " of main@sha1:"+revision[10:18]+" by approver", "✔ Approve of main@sha1:"+revision[10:18]+` for wave "rest" of StackRollout "all" by approver`)
	p.AwaitStack("other", systemtest.Showing("2"))
	p.awaitReason(autov1alpha1.RolloutCompleteReason)
	p.Expect(p.decisions()).To(ContainElement(autov1alpha1.ApprovalSpec{
		Rollout: "all", Wave: "rest", Revision: revision, Decision: autov1alpha1.ApprovalApprove, Reason: "CHG-7", By: "approver"}))

	rejected := p.push(3)
	p.says(0, "rollout reject all --reason INC-7 --revision "+rejected, "► created Approval all-", "✔ Reject of main@sha1:"+rejected[10:18])
	p.awaitReason(autov1alpha1.RevisionRejectedReason)
	p.Expect(p.decisions()).To(ContainElement(And(HaveField("Revision", rejected), HaveField("Decision", autov1alpha1.ApprovalReject),
		HaveField("Wave", ""), HaveField("Reason", "INC-7"), HaveField("By", Not(BeElementOf("", "approver"))))))
	p.says(3, "rollout promote all --revision "+rejected, "does not wait for a promotion", "rejected")
	p.Expect(systemtest.Output(p.AwaitStack("other", systemtest.Showing("2")), "x")).To(Equal("2"))

	// All waves at once, for the next one.
	p.says(0, "rollout promote all --all --revision "+p.push(4), "✔ Approve of main@sha1:", `of StackRollout "all"`)
	p.AwaitStack("other", systemtest.Showing("4"))
	p.awaitReason(autov1alpha1.RolloutCompleteReason)
}

func TestRolloutIsSuspendedAndOneStackIsReleasedOnTheCommandLine(t *testing.T) {
	p := steered(t, "released")
	p.says(1, "rollout suspend nobody", `"nobody" not found`)
	p.says(1, "rollout release nobody --revision sha1:other", `"nobody" not found`)
	p.allow("reader", autov1alpha1.GroupVersion.Group, []string{"stackrollouts"}, "get")
	p.allow("reader", pulumiv1.GroupVersion.Group, []string{"stacks"}, "get")
	for _, verb := range []string{"suspend", "resume"} {
		p.says(1, "rollout "+verb+" all --as reader", "change StackRollout released/all: you are not allowed to")
	}
	revision := p.push(2)

	// What waits is said at once, long before the Stack has the condition.
	other := p.AwaitStack("other", func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) })
	p.Expect(conditions.Has(other, pulumiv1.HeldCondition)).To(BeFalse())
	for _, which := range []string{"stacks", "stack other"} {
		p.Expect(ask(p.Fixture, strings.Fields("get "+which+" -o wide")...).out).To(MatchRegexp(`(?m)^other .* wave rest: PromotionRequired `))
	}
	p.Expect(ask(p.Fixture, "get", "stacks", "-o", "wide").out).To(MatchRegexp(`(?m)^released +\S+ +main@sha1:\S+ +up succeeded \S+ ago +1 unchanged +\d\S* +False `),
		"a Stack that has it is not held")
	p.Expect(strings.Join(strings.Fields(ask(p.Fixture, "explain", "stack", "other").out), " ")).To(ContainSubstring(
		"Held main@sha1:" + revision[10:18] + " waits for wave rest (2 of 2, 1 Stack waiting) of StackRollout released/all; 1/2 have it Waves wave rest"))

	p.says(0, "rollout suspend all", "✔ StackRollout all suspended")
	p.Expect(p.awaitReason(autov1alpha1.RolloutSuspendedReason).Spec.Suspend).To(BeTrue())
	p.says(0, "rollout resume all", "✔ StackRollout all resumed")
	p.Expect(p.awaitReason(autov1alpha1.PromotionRequiredReason).Spec.Suspend).To(BeFalse())

	p.says(2, "rollout release other", "without a terminal, say which revision with --revision")
	p.says(3, "rollout release other --revision sha1:other", "rolls out another revision by now: "+revision)
	p.says(1, "rollout release other --as reader --revision "+revision, "change Stack released/other: you are not allowed to")
	p.Expect(p.AwaitStack("other", systemtest.Showing("1")).Annotations).NotTo(HaveKey(pulumiv1.ReleaseRevisionAnnotation))
	p.says(0, "rollout release other --revision "+revision, "✔ Stack other may have main@sha1:"+revision[10:18])
	p.Expect(p.AwaitStack("other", systemtest.Showing("2")).Annotations).To(HaveKeyWithValue(pulumiv1.ReleaseRevisionAnnotation, revision))
	p.Expect(p.decisions()).To(BeEmpty(), "only the Stack was changed")
}
