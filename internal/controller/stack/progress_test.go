package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

// workspaceThat is a Workspace with the conditions that mark sets.
func workspaceThat(mark func(*autov1alpha1.Workspace)) *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{Name: "app", Generation: 3}
	mark(workspace)
	return workspace
}

func starting(workspace *autov1alpha1.Workspace) {
	conditions.MarkReconciling(workspace, meta.ProgressingReason, "on its way")
	conditions.MarkFalse(workspace, meta.ReadyCondition, autov1alpha1.WaitingForReplicasReason, "on its way")
}

func failing(reason, message string) func(*autov1alpha1.Workspace) {
	return func(workspace *autov1alpha1.Workspace) {
		conditions.MarkReconciling(workspace, meta.ProgressingWithRetryReason, "%s", message)
		conditions.MarkFalse(workspace, meta.ReadyCondition, reason, "%s", message)
	}
}

func stalled(reason string) func(*autov1alpha1.Workspace) {
	return func(workspace *autov1alpha1.Workspace) {
		conditions.MarkStalled(workspace, reason, "it cannot")
		conditions.MarkFalse(workspace, meta.ReadyCondition, reason, "it cannot")
	}
}

func TestWorkspaceFailureIsWhatSomebodyMayHaveToFix(t *testing.T) {
	for name, test := range map[string]struct {
		workspace *autov1alpha1.Workspace
		want      workspaceFailure
	}{
		"none":     {},
		"new":      {workspace: workspaceThat(func(*autov1alpha1.Workspace) {})},
		"starting": {workspace: workspaceThat(starting)},
		"ready": {workspace: workspaceThat(func(workspace *autov1alpha1.Workspace) {
			conditions.MarkTrue(workspace, meta.ReadyCondition, meta.SucceededReason, "ready")
		})},
		"failing": {workspace: workspaceThat(failing(autov1alpha1.ImagePullFailedReason, "no such image")), want: workspaceFailure{
			reason: pulumiv1.WorkspaceNotReadyReason, prefix: `workspace "app" is not ready (ImagePullFailed): `, detail: "no such image",
		}},
		"failing before an edit": {workspace: workspaceThat(func(workspace *autov1alpha1.Workspace) {
			failing(autov1alpha1.ImagePullFailedReason, "no such image")(workspace)
			workspace.Generation++
		})},
		"failing and being deleted": {workspace: workspaceThat(func(workspace *autov1alpha1.Workspace) {
			failing(autov1alpha1.ImagePullFailedReason, "no such image")(workspace)
			workspace.DeletionTimestamp = &metav1.Time{Time: now}
		})},
		"stalled": {workspace: workspaceThat(stalled(autov1alpha1.PodTemplateInvalidReason)), want: workspaceFailure{
			reason: pulumiv1.WorkspaceFailedReason, stalled: true, prefix: `workspace "app" is not ready (PodTemplateInvalid): `, detail: "it cannot",
		}},
		"too old": {workspace: workspaceThat(stalled(autov1alpha1.IncompatibleConfigurationReason)), want: workspaceFailure{
			reason: pulumiv1.PulumiVersionTooLowReason, stalled: true, prefix: `workspace "app" is not ready (IncompatibleConfiguration): `, detail: "it cannot",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(workspaceFailureOf(test.workspace)).To(Equal(test.want))
		})
	}
}

// lint checks the conditions against the rules that Flux's own controllers follow.
func lint(t *testing.T, g *WithT, stack *pulumiv1.Stack) {
	g.Expect(statuscheck.Lint(t.Context(), stack)).To(Succeed(), "conditions: %v", stack.Status.Conditions)
}

func TestWorkspaceFailureIsAnnouncedOnceForEachReasonAndGoesWithItsCause(t *testing.T) {
	g := NewWithT(t)
	recorder := record.NewFakeRecorder(10)
	r := &Reconciler{EventRecorder: recorder}
	o := updating()
	o.stack.Status.LastUpdate.Failures, o.stack.Status.ObservedGeneration = 1, o.stack.Generation
	conditions.MarkTrue(o.stack, meta.ReadyCondition, pulumiv1.ProcessingCompletedReason, "done")
	look := func(workspace *autov1alpha1.Workspace) []string {
		o.workspace = workspace
		outcome := r.showProgress(o, o.update)
		for _, step := range outcome.then {
			g.Expect(step(t.Context())).To(Succeed())
		}
		lint(t, g, o.stack)
		var events []string
		for len(recorder.Events) > 0 {
			events = append(events, <-recorder.Events)
		}
		return events
	}
	g.Expect(look(workspaceThat(starting))).To(BeEmpty())
	g.Expect(conditions.IsReady(o.stack)).To(BeTrue(), "a periodic run of a Stack that is up to date changes nothing")

	g.Expect(look(workspaceThat(failing("ImagePull", "back-off 10s")))).To(ConsistOf(
		`Warning WorkspaceNotReady workspace "app" is not ready (ImagePull): back-off 10s`))
	g.Expect(look(workspaceThat(failing("ImagePull", "back-off 20s")))).To(BeEmpty())
	g.Expect(conditions.GetMessage(o.stack, meta.ReadyCondition)).To(HaveSuffix("back-off 20s"))
	g.Expect(conditions.GetReason(o.stack, meta.ReconcilingCondition)).To(Equal(meta.ProgressingWithRetryReason))
	g.Expect(look(workspaceThat(failing("ImagePullFailed", "gone")))).To(HaveLen(1))

	g.Expect(look(workspaceThat(stalled("ImagePullFailed")))).To(HaveLen(1))
	g.Expect(conditions.IsStalled(o.stack)).To(BeTrue())
	g.Expect(conditions.IsReconciling(o.stack)).To(BeFalse())
	g.Expect(look(workspaceThat(starting))).To(BeEmpty())
	g.Expect(conditions.IsUnknown(o.stack, meta.ReadyCondition)).To(BeTrue())
	g.Expect(conditions.IsStalled(o.stack)).To(BeFalse())
	g.Expect(o.stack.Status.LastUpdate.Failures).To(BeEquivalentTo(1))
}

func TestStackIsWokenByTheFailureOfItsWorkspaceOnly(t *testing.T) {
	g := NewWithT(t)
	wakes := func(before, after *autov1alpha1.Workspace) bool {
		return workspaceChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	}
	fine, bad := workspaceThat(starting), workspaceThat(failing("ImagePullFailed", "no such image"))
	g.Expect(wakes(fine, bad)).To(BeTrue())
	g.Expect(wakes(bad, fine)).To(BeTrue())
	g.Expect(wakes(bad, workspaceThat(stalled("ImagePullFailed")))).To(BeTrue())
	g.Expect(wakes(bad, bad)).To(BeFalse())
	g.Expect(wakes(workspaceThat(func(*autov1alpha1.Workspace) {}), fine)).To(BeFalse())
	ending := workspaceThat(starting)
	ending.DeletionTimestamp = &metav1.Time{Time: now}
	g.Expect(wakes(fine, ending)).To(BeTrue())
	g.Expect(workspaceChanged.Delete(event.DeleteEvent{Object: fine})).To(BeTrue())
	g.Expect(workspaceChanged.Create(event.CreateEvent{Object: bad})).To(BeFalse())
}

func TestStackThatFailedOftenIsStalledAlsoWhenTheNextAttemptStartsAtOnce(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*observation)
		stalled bool
	}{
		{"many failures", func(*observation) {}, true},
		{"few failures", func(o *observation) { o.stack.Status.LastUpdate.Failures = stalledAfterFailures - 1 }, false},
		{"another commit", func(o *observation) { o.stack.Status.CurrentUpdate.Commit = "sha256:b" }, false},
		{"a request", func(o *observation) { o.stack.Status.CurrentUpdate.RequestedAt = "now" }, false},
		{"a success", func(o *observation) { o.stack.Status.LastUpdate.State = pulumiv1.StackUpdateSucceeded }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := updating()
			o.stack.Status.LastUpdate.State, o.stack.Status.LastUpdate.Message = pulumiv1.StackUpdateFailed, "no such file"
			o.stack.Status.LastUpdate.Failures = stalledAfterFailures
			test.change(o)
			// The status showed that the failed attempt was in progress, and did not show its failure yet.
			markProgressing(o.stack, "stack is being processed")
			(&Reconciler{}).showProgress(o, o.update)
			lint(t, g, o.stack)
			g.Expect(conditions.IsStalled(o.stack)).To(Equal(test.stalled))
			g.Expect(conditions.IsReconciling(o.stack)).To(Equal(!test.stalled))
			if test.stalled {
				g.Expect(conditions.GetReason(o.stack, meta.ReadyCondition)).To(Equal(pulumiv1.UpdateFailedReason))
				g.Expect(conditions.GetMessage(o.stack, meta.ReadyCondition)).To(Equal("up failed (attempt 3), another attempt is on its way: no such file"))
			}
		})
	}
}

func TestProblemThatAnUpdateWaitsForIsReportedOnce(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	for _, problem := range []struct{ reason, message string }{
		{pulumiv1.SecretNotFoundReason, "waiting for the secret one"},
		{pulumiv1.SecretNotFoundReason, "waiting for the secret two"},
		{autov1alpha1.UpdateTransientFailureReason, "the agent does not answer"},
	} {
		s.setUpdate(stack, func(update *autov1alpha1.Update) {
			conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, problem.reason, "%s", problem.message)
		})
		s.await(stack, reasonIs(meta.ReadyCondition, problem.reason))
		s.await(stack, func(stack *pulumiv1.Stack) bool {
			return conditions.GetMessage(stack, meta.ReadyCondition) == problem.message
		})
	}

	s.Eventually(s.warnings).Should(ConsistOf("SecretNotFound: waiting for the secret one"))
}

func TestUpdateWhoseAgentDoesNotAnswerIsAnnouncedAfterAMinute(t *testing.T) {
	g := NewWithT(t)
	o := updating()
	conditions.MarkFalse(o.update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateTransientFailureReason, "the agent does not answer")
	shows := func(result *outcome) { *result = (&Reconciler{}).showProgress(o, o.update) }
	events, after := announcements(o.stack, now, shows)
	g.Expect(events).To(BeEmpty(), "most problems of this kind end at once")
	g.Expect(after).To(Equal(problemGrace))
	events, _ = announcements(o.stack, now.Add(after), shows)
	g.Expect(events).To(ConsistOf(HavePrefix("Warning TransientFailure the agent does not answer")))
	events, _ = announcements(o.stack, now.Add(time.Hour), shows)
	g.Expect(events).To(BeEmpty())
}
