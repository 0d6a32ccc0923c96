package e2e_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// needsApproval makes each change wait for an approval.
func needsApproval(changes ...func(*pulumiv1.ApprovalPolicy)) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) {
		s.Spec.Approval = &pulumiv1.ApprovalPolicy{}
		for _, change := range changes {
			change(s.Spec.Approval)
		}
	}
}

// guardedThings deploys a Stack that needs approvals from then on.
func guardedThings(p *fixture, changes ...func(*pulumiv1.ApprovalPolicy)) *resourceFixture {
	p.Helper()
	r := newThings(p, destroyed)
	r.Change(needsApproval(changes...))
	return r
}

// both matches a Stack that one and other match.
func both(one, other func(*pulumiv1.Stack) bool) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool { return one(s) && other(s) }
}

// with returns a program with the files, each with the content.
func (r *resourceFixture) with(content string, files ...string) gitserver.Files {
	lines := []string{"resources:"}
	for _, file := range files {
		lines = append(lines, r.sleep(file, fmt.Sprintf("seconds: 0, file: %s, content: %s", r.file(file), content), "")...)
	}
	return r.yaml(lines...)
}

func (r *resourceFixture) read(file string) string {
	content, _ := os.ReadFile(r.file(file))
	return string(content)
}

// waits matches a Stack with a plan that waits for an approval.
func waits(stack *pulumiv1.Stack) bool {
	return conditions.IsStalled(stack) && conditions.GetReason(stack, "Ready") == pulumiv1.ApprovalRequiredReason
}

// waitsFor waits for a plan other than that of before. Nil stands for any plan.
func (r *resourceFixture) waitsFor(before *pulumiv1.Stack) *pulumiv1.Stack {
	r.Helper()
	return r.Await(func(s *pulumiv1.Stack) bool {
		return waits(s) && (before == nil || s.Status.Plan.Name != before.Status.Plan.Name)
	})
}

// decide creates an Approval for the plan in the status.
func (r *resourceFixture) decide(stack *pulumiv1.Stack, decision autov1alpha1.ApprovalDecision, by string, changes ...func(*autov1alpha1.Approval)) *autov1alpha1.Approval {
	r.Helper()
	approval := &autov1alpha1.Approval{
		Namespace: r.Name, GenerateName: r.Name + "-",
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

func (r *resourceFixture) approve(stack *pulumiv1.Stack) {
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

	// An Approval with another digest does not count.
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

	// A new commit replaces the waiting plan. A plan without changes needs no approval.
	r.publish(r.with("two", "first"))
	stack = r.waitsFor(stack)
	r.Expect(stack.Status.Plan.Summary).To(HaveSuffix("-1"))
	back := r.publish(r.with("one", "first", "second"))
	r.Await(both(planIs(pulumiv1.PlanApplied), ready(back.Digest)))

	// When the Stack is deleted, the destroy is planned, too.
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

	// A request leads to another plan.
	r.retry()
	stack = r.waitsFor(stack)
	r.Expect(stack.Status.Plan.Approvals).To(BeEmpty())

	// An edit of the Stack leads to another plan, and an Approval of the earlier plan does not count.
	r.Change(func(s *pulumiv1.Stack) { s.Spec.Config = map[string]apiextensionsv1.JSON{"x": value(`"y"`)} })
	again := r.waitsFor(stack)
	late := r.decide(stack, autov1alpha1.ApprovalApprove, "alice")
	r.Expect(conditions.GetReason(late, autov1alpha1.ApprovalAccepted)).To(Equal(autov1alpha1.PlanSupersededReason))
	r.approve(again)
	r.Await(planIs(pulumiv1.PlanApplied))
	r.Expect(r.read("first")).To(Equal("one"))

	// An Update that is created by hand does not bypass the approval.
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
	// Someone changes the state, but nothing that is part of the plan.
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

// planner is a Workspace whose program makes files, with the Updates that make plans and carry them out.
type planner struct {
	*fixture
	dir     string
	updates int
}

// planning creates a Workspace with a local program, and with the secret in its configuration.
func planning(p *fixture) *planner {
	p.Helper()
	r := &planner{fixture: p, dir: p.TempDir()}
	workspace := p.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Local = &autov1alpha1.LocalSource{}
		spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{{
			Key: "password", ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "config", Key: "password"}},
		}}}}
	})
	p.Create(&corev1.Namespace{Name: p.Name}, p.Secret("config", map[string]string{"password": secretCanary}), workspace)
	p.Eventually(func() bool { return conditions.IsReady(p.Workspace()) }).Should(BeTrue())
	p.InstallProvider(p.Name)
	return r
}

// program returns a program with two files: one has the content, the other one the secret.
func (r *planner) program(content string) string {
	program := fmt.Sprintf("name: %s\nruntime: yaml\nconfig:\n  password: {type: string, secret: true}\nresources:\n", r.Name)
	for name, content := range map[string]string{"plain": content, "secret": "${password}"} {
		program += fmt.Sprintf("  %s:\n    type: test:index:Sleep\n    properties: {file: %q, content: %q}\n    options: {version: 0.1.0}\n", name, r.file(name), content)
	}
	return program
}

func (r *planner) file(name string) string { return filepath.Join(r.dir, name) }

func (r *planner) content(name string) string {
	content, _ := os.ReadFile(r.file(name))
	return string(content)
}

// bring writes the program with the content into the workspace.
func (r *planner) bring(content string) {
	r.Helper()
	r.Succeed(os.WriteFile(filepath.Join(r.Directory(r.Name), "workspace", "Pulumi.yaml"), []byte(r.program(content)), 0o600))
}

// run creates an Update, and waits until it has ended.
func (r *planner) run(kind autov1alpha1.UpdateType, changes ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
	r.Helper()
	r.updates++
	update := r.handmade(kind, append([]func(*autov1alpha1.Update){func(update *autov1alpha1.Update) {
		update.Name = fmt.Sprintf("%s-%d", kind, r.updates)
	}}, changes...)...)
	r.awaitUpdate(update, (*autov1alpha1.Update).IsComplete)
	return update
}

// plan runs a preview that saves a plan.
func (r *planner) plan(changes ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
	r.Helper()
	update := r.run(autov1alpha1.UpdateTypePreview, append([]func(*autov1alpha1.Update){savesPlan}, changes...)...)
	r.Expect(update.HasFailed()).To(BeFalse(), update.Status.Message)
	r.Expect(update.Status.Plan).NotTo(BeNil())
	return update
}

func savesPlan(update *autov1alpha1.Update) { update.Spec.SavePlan = new(true) }

// of makes an Update carry out the plan.
func of(plan *autov1alpha1.Update, enforce autov1alpha1.PlanEnforcement) func(*autov1alpha1.Update) {
	return func(update *autov1alpha1.Update) {
		update.Spec.Plan = &autov1alpha1.PlanReference{Name: plan.Name, Digest: plan.Status.Plan.Digest, Enforce: enforce}
	}
}

// refused runs an Update, and expects that it did not carry out the plan, for the given reason, and changed nothing.
func (r *planner) refused(reason string, kind autov1alpha1.UpdateType, changes ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
	r.Helper()
	before, file := r.State(r.Name, "dev"), r.content("plain")
	update := r.run(kind, changes...)
	r.Expect(conditions.GetReason(update, autov1alpha1.UpdateFailed)).To(Equal(reason), update.Status.Message)
	r.Expect(update.Status.Message).To(ContainSubstring("nothing was changed"))
	r.Expect(update.WasStale()).To(Equal(reason == autov1alpha1.PlanStaleReason))
	r.Expect(r.State(r.Name, "dev")).To(Equal(before))
	r.Expect(r.content("plain")).To(Equal(file))
	return update
}

// text returns the human-readable plan from the last Secret of the plan.
func (r *planner) text(plan *autov1alpha1.Update) string {
	r.Helper()
	secrets := plan.Status.Plan.Secrets
	secret := &corev1.Secret{}
	r.Get(secrets[len(secrets)-1], secret)
	return r.unzipped(secret.Data[autov1alpha1.PlanTextKey])
}

func (r *planner) unzipped(content []byte) string {
	r.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(content))
	r.Succeed(err)
	plain, err := io.ReadAll(zip)
	r.Succeed(err)
	return string(plain)
}

func TestPlanIsCarriedOutAsItIsOrNotAtAll(t *testing.T) {
	suite.Long(t, "further plans")
	r := planning(begin(t, "planned"))
	r.bring("one")
	plan := r.plan()
	r.Expect(plan.Status.Changes).To(HaveLen(2))
	r.Expect(plan.Status.Plan.Secrets).To(Equal([]string{plan.Name + "-plan-0"}))
	secret := &corev1.Secret{}
	r.Get(plan.Status.Plan.Secrets[0], secret)
	r.Expect(secret.Immutable).To(HaveValue(BeTrue()))
	r.Expect(metav1.IsControlledBy(secret, plan)).To(BeTrue())
	r.Expect(r.text(plan)).To(And(ContainSubstring(`+ content: "one"`), ContainSubstring("+ content: [secret]"), Not(ContainSubstring(secretCanary))))
	r.Expect(r.unzipped(secret.Data[autov1alpha1.PlanFileKey])).To(And(ContainSubstring("resourcePlans"), Not(ContainSubstring(secretCanary))))
	r.Expect(r.file("plain")).NotTo(BeAnExistingFile())

	// The same plan, made again, has the same changes. Its digest is another one, because the file of Pulumi has a time.
	again := r.plan()
	r.Expect(again.Status.Plan.ChangesDigest).To(Equal(plan.Status.Plan.ChangesDigest))

	// The next agent reads the plan from its Secret.
	r.KillAgent()
	done := r.run(autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))
	r.Expect(done.HasFailed()).To(BeFalse(), done.Status.Message)
	r.Expect(r.content("plain")).To(Equal("one"))
	r.Expect(r.content("secret")).To(Equal(secretCanary))
	r.Expect(done.Status.Outputs).NotTo(BeNil())

	// PlanStale: carrying out the plan has changed the state.
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforceInputs))

	// PlanViolated: the program asks for another change, and nothing except the plan shows that.
	r.bring("two")
	plan = r.plan()
	r.Expect(r.text(plan)).To(ContainSubstring(`~ content: "one" => "two"`))
	r.bring("three")
	violated := r.refused(autov1alpha1.PlanViolatedReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))
	r.Expect(violated.Status.Message).To(And(ContainSubstring("::plain (content)"), Not(ContainSubstring("three"))))

	// PlanStale: another commit, other inputs, another digest, a missing plan, and another operation.
	artifact := r.put(map[string]string{"Pulumi.yaml": r.program("two")})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan), func(update *autov1alpha1.Update) {
		update.Spec.Source = &autov1alpha1.UpdateSource{URL: artifact.URL, Digest: artifact.Digest}
	})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan), func(update *autov1alpha1.Update) {
		update.Spec.Refresh = new(true)
	})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(again, autov1alpha1.EnforcePlan), func(update *autov1alpha1.Update) {
		update.Spec.Plan.Name = plan.Name
	})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan), func(update *autov1alpha1.Update) {
		update.Spec.Plan.Name = "gone"
	})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeDestroy, of(plan, autov1alpha1.EnforcePlan))

	// PlanStale: a Secret that someone replaced by one with another content, or with another owner.
	r.bring("two")
	r.Get(plan.Status.Plan.Secrets[0], secret)
	replace := func(change func(*corev1.Secret)) {
		replaced := &corev1.Secret{ObjectMeta: r.Meta(secret.Name), Data: map[string][]byte{}, Immutable: new(true)}
		replaced.OwnerReferences = secret.OwnerReferences
		maps.Copy(replaced.Data, secret.Data)
		change(replaced)
		r.Succeed(client.IgnoreNotFound(system.Client.Delete(r.Context(), &corev1.Secret{ObjectMeta: r.Meta(secret.Name)})))
		r.Create(replaced)
	}
	replace(func(forged *corev1.Secret) {
		forged.Data[autov1alpha1.PlanFileKey] = append(bytes.Clone(secret.Data[autov1alpha1.PlanFileKey]), 'x')
	})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))
	replace(func(forged *corev1.Secret) {
		changed := bytes.Clone(secret.Data[autov1alpha1.PlanFileKey])
		changed[len(changed)/2] ^= 1
		forged.Data[autov1alpha1.PlanFileKey] = changed
	})
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))
	replace(func(forged *corev1.Secret) { forged.OwnerReferences[0].UID = again.UID })
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))
	// The garbage collector may have deleted the Secret already.
	r.Succeed(client.IgnoreNotFound(system.Client.Delete(r.Context(), &corev1.Secret{ObjectMeta: r.Meta(secret.Name)})))
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforcePlan))

	// EnforceInputs compares only the inputs and the state, without Pulumi's plan file.
	done = r.run(autov1alpha1.UpdateTypeUp, of(plan, autov1alpha1.EnforceInputs))
	r.Expect(done.HasFailed()).To(BeFalse(), done.Status.Message)
	r.Expect(r.content("plain")).To(Equal("two"))
}

func TestPlanOfADestroyIsCarriedOutAsItIsOrNotAtAll(t *testing.T) {
	suite.Long(t, "a plan of another operation")
	r := planning(begin(t, "planned-destroy"))
	r.bring("one")
	r.run(autov1alpha1.UpdateTypeUp)
	destroyPlan := func() *autov1alpha1.Update {
		update := r.run(autov1alpha1.UpdateTypeDestroy, savesPlan, func(update *autov1alpha1.Update) { update.Spec.PreviewOnly = new(true) })
		r.Expect(update.HasFailed()).To(BeFalse(), update.Status.Message)
		return update
	}
	plan := destroyPlan()
	r.Expect(plan.Status.Changes).To(HaveLen(2))
	r.Expect(r.text(plan)).To(ContainSubstring("- delete test:index:Sleep plain"))
	r.Expect(plan.Status.Plan.Size).To(BeZero())
	r.bring("two")
	r.run(autov1alpha1.UpdateTypeUp)
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeDestroy, of(plan, ""))
	r.refused(autov1alpha1.PlanStaleReason, autov1alpha1.UpdateTypeUp, of(destroyPlan(), ""))

	done := r.run(autov1alpha1.UpdateTypeDestroy, of(destroyPlan(), ""))
	r.Expect(done.HasFailed()).To(BeFalse(), done.Status.Message)
	r.Expect(r.file("plain")).NotTo(BeAnExistingFile())
	r.Expect(r.resources()).To(BeZero())
}
