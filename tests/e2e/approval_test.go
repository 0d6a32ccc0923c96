package e2e_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// needsApproval makes each change wait for somebody.
func needsApproval(changes ...func(*pulumiv1.ApprovalPolicy)) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) {
		s.Spec.Approval = &pulumiv1.ApprovalPolicy{}
		for _, change := range changes {
			change(s.Spec.Approval)
		}
	}
}

// guardedThings is a Stack that is deployed, and from now on needs an approval.
func guardedThings(p *play, changes ...func(*pulumiv1.ApprovalPolicy)) *things {
	p.Helper()
	r := newThings(p, destroyed)
	r.Change(needsApproval(changes...))
	return r
}

// both matches what both match.
func both(one, other func(*pulumiv1.Stack) bool) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool { return one(s) && other(s) }
}

// with is a program with files of the content.
func (r *things) with(content string, files ...string) gitserver.Files {
	lines := []string{"resources:"}
	for _, file := range files {
		lines = append(lines, r.sleep(file, fmt.Sprintf("seconds: 0, file: %s, content: %s", r.file(file), content), "")...)
	}
	return r.yaml(lines...)
}

func (r *things) read(file string) string {
	content, _ := os.ReadFile(r.file(file))
	return string(content)
}

// waits matches a Stack with a plan that waits for its approval.
func waits(stack *pulumiv1.Stack) bool {
	return conditions.IsStalled(stack) && conditions.GetReason(stack, "Ready") == pulumiv1.ApprovalRequiredReason
}

// waitsFor waits for another plan than the one before, nil for any.
func (r *things) waitsFor(before *pulumiv1.Stack) *pulumiv1.Stack {
	r.Helper()
	return r.Await(func(s *pulumiv1.Stack) bool {
		return waits(s) && (before == nil || s.Status.Plan.Name != before.Status.Plan.Name)
	})
}

// decide makes an Approval of the plan in the status.
func (r *things) decide(stack *pulumiv1.Stack, decision autov1alpha1.ApprovalDecision, by string, changes ...func(*autov1alpha1.Approval)) *autov1alpha1.Approval {
	r.Helper()
	approval := &autov1alpha1.Approval{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Name, GenerateName: r.Name + "-"},
		Spec: autov1alpha1.ApprovalSpec{Update: stack.Status.Plan.Name, Digest: stack.Status.Plan.Digest, Decision: decision,
			Reason: "CHG-42", By: by},
	}
	for _, change := range changes {
		change(approval)
	}
	r.Create(approval)
	r.Eventually(func() bool {
		r.Get(approval.Name, approval)
		return conditions.Has(approval, autov1alpha1.ApprovalAccepted)
	}).Should(BeTrue())
	return approval
}

func (r *things) approve(stack *pulumiv1.Stack) {
	r.Helper()
	approval := r.decide(stack, autov1alpha1.ApprovalApprove, "alice")
	r.Expect(conditions.IsTrue(approval, autov1alpha1.ApprovalAccepted)).To(BeTrue(), conditions.GetMessage(approval, autov1alpha1.ApprovalAccepted))
}

func planIs(state pulumiv1.PlanState) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return s.Status.Plan != nil && s.Status.Plan.State == state && s.Status.CurrentUpdate == nil
	}
}

func TestPlanWaitsForItsApprovalAndIsCarriedOut(t *testing.T) {
	r := guardedThings(begin(t, "approved"))
	r.publish(r.with("one", "first", "second"))
	stack := r.waitsFor(nil)
	plan := stack.Status.Plan
	r.Expect(plan.Summary).To(Equal("+2 ~0 +-0 -0"))
	r.Expect(plan.State).To(Equal(pulumiv1.PlanPending))
	r.Expect(statuscheck.Message(stack)).To(And(ContainSubstring("flux-pulumi plan approve approved"), ContainSubstring(plan.Digest)))
	r.Eventually(func() []string { return r.events(pulumiv1.ApprovalRequiredReason) }).Should(HaveExactElements(ContainSubstring(plan.Digest)))
	r.Expect(r.file("first")).NotTo(BeAnExistingFile())

	// One of another digest, and one for what is no plan, do not count.
	other := r.decide(stack, autov1alpha1.ApprovalApprove, "mallory", func(a *autov1alpha1.Approval) {
		a.Spec.Digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	})
	r.Expect(conditions.GetReason(other, autov1alpha1.ApprovalAccepted)).To(Equal(autov1alpha1.DigestMismatchReason))
	r.approve(stack)
	stack = r.Await(planIs(pulumiv1.PlanApplied))
	r.Expect(r.read("first")).To(Equal("one"))
	r.Expect(stack.Status.Plan.Approvals).To(HaveExactElements(And(HaveField("By", "alice"), HaveField("Reason", "CHG-42"))))
	r.Expect(conditions.IsReady(stack)).To(BeTrue())
	update := r.LastUpdate(stack)
	r.Expect(update.Spec.Plan).To(HaveValue(HaveField("Digest", plan.Digest)))
	r.Expect(update.Spec.Message).To(HaveValue(ContainSubstring("approved by alice (CHG-42)")))

	// A new commit takes the place of one that waits. One without changes needs nobody.
	r.publish(r.with("two", "first"))
	stack = r.waitsFor(stack)
	r.Expect(stack.Status.Plan.Summary).To(HaveSuffix("-1"))
	back := r.publish(r.with("one", "first", "second"))
	r.Await(both(planIs(pulumiv1.PlanApplied), ready(back.Digest)))

	// Deleted, the destroy is planned, too.
	r.Delete()
	stack = r.waitsFor(stack)
	r.Expect(stack.Status.Plan.Operation).To(Equal(pulumiv1.ApprovedDestroy))
	r.Expect(statuscheck.Message(stack)).To(ContainSubstring(pulumiv1.OrphanAnnotation))
	r.Expect(r.read("first")).To(Equal("one"))
	r.approve(stack)
	r.AwaitGone()
	r.Expect(r.file("first")).NotTo(BeAnExistingFile())
}

func TestRejectedPlanIsNotCarriedOut(t *testing.T) {
	suite.Long(t, "further ways of an approval")
	r := guardedThings(begin(t, "rejected"), func(policy *pulumiv1.ApprovalPolicy) {
		policy.Operations = []pulumiv1.ApprovedOperation{pulumiv1.ApprovedUp, pulumiv1.ApprovedDriftCorrection}
	})
	r.publish(r.with("one", "first"))
	stack := r.waitsFor(nil)
	r.decide(stack, autov1alpha1.ApprovalReject, "bob")
	r.Await(func(s *pulumiv1.Stack) bool { return conditions.GetReason(s, "Ready") == pulumiv1.PlanRejectedReason })
	r.decide(stack, autov1alpha1.ApprovalApprove, "alice")
	r.Consistently(func() string { return r.read("first") }, time.Second).Should(BeEmpty())

	// Somebody asks for another plan.
	r.retry()
	stack = r.waitsFor(stack)
	r.Expect(stack.Status.Plan.Approvals).To(BeEmpty())

	// An edit between the approval and the update makes another plan.
	r.Change(func(s *pulumiv1.Stack) { s.Spec.Config = map[string]apiextensionsv1.JSON{"x": value(`"y"`)} })
	again := r.waitsFor(stack)
	late := r.decide(stack, autov1alpha1.ApprovalApprove, "alice")
	r.Expect(conditions.GetReason(late, autov1alpha1.ApprovalAccepted)).To(Equal(autov1alpha1.PlanSupersededReason))
	r.approve(again)
	r.Await(planIs(pulumiv1.PlanApplied))
	r.Expect(r.read("first")).To(Equal("one"))

	// Who makes an Update by hand does not get around it.
	for _, kind := range []autov1alpha1.UpdateType{autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypeDestroy, autov1alpha1.UpdateTypeRefresh} {
		update := r.handmade(kind, func(update *autov1alpha1.Update) { update.Name = "by-hand-" + string(kind) })
		r.awaitUpdate(update, (*autov1alpha1.Update).HasFailed)
		r.Expect(conditions.GetReason(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.ApprovalRequiredReason))
	}
	preview := r.handmade(autov1alpha1.UpdateTypePreview, func(update *autov1alpha1.Update) { update.Name = "by-hand-preview" })
	r.awaitSuccess(preview)
}

func TestPlanThatExpiresIsMadeAgain(t *testing.T) {
	suite.Long(t, "further ways of an approval")
	r := guardedThings(begin(t, "expired"), func(policy *pulumiv1.ApprovalPolicy) {
		policy.ExpiresAfter = metav1.Duration{Duration: time.Minute}
	})
	r.publish(r.with("one", "first"))
	stack := r.waitsFor(nil)
	r.patchStatus(func(s *pulumiv1.Stack) { s.Status.Plan.ExpiresAt = &metav1.Time{Time: time.Now().Add(-time.Second)} })
	late := r.decide(stack, autov1alpha1.ApprovalApprove, "alice")
	r.Expect(conditions.IsTrue(late, autov1alpha1.ApprovalAccepted)).To(BeFalse())
	r.retry()
	stack = r.waitsFor(stack)
	r.Expect(stack.Status.Plan.Approvals).To(BeEmpty())
}

func TestApprovalIsKeptWhenOnlyTheStateMoved(t *testing.T) {
	suite.Long(t, "further ways of an approval")
	r := guardedThings(begin(t, "moved"))
	r.publish(r.with("one", "first"))
	r.approve(r.waitsFor(nil))
	r.Await(planIs(pulumiv1.PlanApplied))
	r.publish(r.with("two", "first"))
	stack := r.waitsFor(nil)
	// Somebody else changes the state, and nothing that was planned.
	r.pulumi("config", "set", "other", "value")
	r.pulumi("state", "protect", r.urn("first"), "--yes")
	r.approve(stack)
	stack = r.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.CurrentUpdate == nil && s.Status.Plan.Name != stack.Status.Plan.Name
	})
	r.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

func TestDriftIsCorrectedOnceThatIsApproved(t *testing.T) {
	suite.Long(t, "further ways of an approval")
	r := guardedThings(begin(t, "approved-drift"), func(policy *pulumiv1.ApprovalPolicy) {
		policy.Operations = []pulumiv1.ApprovedOperation{pulumiv1.ApprovedDriftCorrection}
	})
	r.Change(checksForDrift(pulumiv1.DriftModeCorrect))
	artifact := r.publish(r.with("x", "first", "second"))
	r.Await(both(planIs(pulumiv1.PlanApplied), ready(artifact.Digest)))
	r.write("first", "theirs")
	r.check("now")
	stack := r.Await(planIs(pulumiv1.PlanPending))
	r.Expect(conditions.IsReady(stack)).To(BeTrue(), "nobody asked for it")
	r.Expect(stack.Status.Plan.Operation).To(Equal(pulumiv1.ApprovedDriftCorrection))
	r.Expect(r.read("first")).To(Equal("theirs"))
	r.approve(stack)
	r.Await(both(planIs(pulumiv1.PlanApplied), func(s *pulumiv1.Stack) bool { return s.Status.Drift.Correction != nil }))
	r.Expect(r.read("first")).To(Equal("x"))
}
