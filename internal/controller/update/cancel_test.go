package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// askToEnd requests, with the annotation, that the operation of the Update is cancelled.
func (s *fixture) askToEnd(update *autov1alpha1.Update) {
	s.t.Helper()
	current, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	before := current.DeepCopy()
	metav1.SetMetaDataAnnotation(&current.ObjectMeta, pulumiv1.CancelUpdateAnnotation, "true")
	s.Expect(s.client.Patch(s.t.Context(), current, ctrlclient.MergeFrom(before))).To(Succeed())
}

func TestUpdateThatIsAskedToEndStaysAsARecord(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	stop := s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.askToEnd(update)
	done := s.finished(update)
	s.Expect(done).To(haveFailed(autov1alpha1.CanceledReason, "cancelled"))
	s.Expect(done.Status.State).To(Equal(autov1alpha1.UpdateStateCancelled))
	s.Expect(done.Status.StartTime).NotTo(BeNil())

	// The request counts even if no controller runs when it is made.
	next := s.newUpdate("next")
	s.Eventually(s.current(next)).Should(beProgressing())
	stop()
	s.askToEnd(next)
	s.startController()
	s.Expect(s.finished(next)).To(haveFailed(autov1alpha1.CanceledReason, "cancelled"))
	s.Expect(s.agents.script.requests()).To(HaveLen(2))
}

func TestCancelledUpdateDidNotRunWhereThereNeverWasAnAgent(t *testing.T) {
	for name, test := range map[string]struct {
		version   string // that an agent has reported
		unclaimed bool
		notRun    bool
	}{"there never was an agent": {"", false, true}, "there was one": {"v3.276.0", false, false}, "there was one before": {"v3.276.0", true, true}} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.startController()
			workspace := s.newWorkspace("app")
			before := workspace.DeepCopy()
			workspace.Status.PulumiVersion = test.version
			conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, autov1alpha1.ImagePullFailedReason, "no such image")
			s.Expect(s.client.Status().Patch(t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())
			update := s.newUpdate("up", withFinalizer, func(update *autov1alpha1.Update) {
				kind := autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)
				update.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(workspace, kind)}
				if test.unclaimed {
					update.Annotations = map[string]string{autov1alpha1.NotStartedAnnotation: "true"}
				}
			})
			s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotReadyReason, ""))
			s.askToEnd(update)
			done := s.finished(update)
			s.Expect(done).To(haveFailed(autov1alpha1.CanceledReason, "before its operation started"))
			s.Expect(done.Status.NotRun).To(Equal(test.notRun))
		})
	}
}

func TestUpdateThatIsAskedToEndDoesNotWaitForAnAgentThatCannotStart(t *testing.T) {
	s := newFixture(t)
	workspace := s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.agents.answerWith(tellsNobody)
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.agents.stop(s.key("app"))
	s.setReady(workspace, false, "the pod cannot be scheduled")
	s.Eventually(s.current(update)).Should(And(beProgressing(), HaveField("Status.Message", ContainSubstring("the agent does not answer"))))
	s.askToEnd(update)
	s.Eventually(s.current(update)).Should(And(haveFailed(autov1alpha1.InterruptedReason, "its outcome is not known"), HaveField("Status.NotRun", false)))
	s.agents.start(s.key("app"))
	s.Expect(s.finished(update)).To(haveFailed(autov1alpha1.InterruptedReason, "its outcome is not known"))
}

func TestUpdateThatIsAskedToEndBeforeItStartedNeverStarts(t *testing.T) {
	s := newFixture(t)
	s.startController()
	update := s.newUpdate("up", withFinalizer)
	s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotFoundReason, ""))
	s.askToEnd(update)
	done := s.finished(update)
	s.Expect(done).To(haveFailed(autov1alpha1.CanceledReason, "before its operation started"))
	s.Expect(done.Status.StartTime).To(BeNil())
	s.newReadyWorkspace("app")
	s.agents.script.blocks()()
	s.Expect(s.finished(s.newUpdate("next"))).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

func TestOptionsReachTheAgent(t *testing.T) {
	g := NewWithT(t)
	update := &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{
		Type: autov1alpha1.UpdateTypeUp, Refresh: new(true), ExpectNoRefreshChanges: new(true), AfterInterruption: new(true),
	}}
	o := &observation{update: update, workspace: &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{}}}}
	request, err := describeOperation(t.Context(), o, &inputReader{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(request.GetAfterInterruption()).To(BeTrue())
	g.Expect(request.GetOptions().GetRefresh()).To(BeTrue())
	g.Expect(request.GetOptions().GetExpectNoRefreshChanges()).To(BeTrue())
}

func TestOnlyOperationsThatMayHaveLeftALockSinceTheLastSuccessAreInterrupted(t *testing.T) {
	g := NewWithT(t)
	at := func(minutes int) *metav1.Time {
		return &metav1.Time{Time: testTime.Add(time.Duration(minutes) * time.Minute)}
	}
	ran := func(minutes int, reason string, changes ...func(*autov1alpha1.Update)) autov1alpha1.Update {
		update := autov1alpha1.Update{CreationTimestamp: *at(minutes), Spec: autov1alpha1.UpdateSpec{StackName: "dev", Type: autov1alpha1.UpdateTypeUp}}
		update.Status.StartTime = at(minutes + 1)
		if reason == "" {
			markSucceeded(&update, at(minutes+5).Time, "")
		} else {
			markFailed(&update, reason, at(minutes+5).Time, "")
		}
		for _, change := range changes {
			change(&update)
		}
		return update
	}
	period := func(start, end int) *agentpb.Period {
		return &agentpb.Period{Start: timestamppb.New(at(start).Time), End: timestamppb.New(at(end).Time)}
	}
	unstarted := func(update *autov1alpha1.Update) { update.Status.StartTime = nil }
	periods := interruptedPeriods([]autov1alpha1.Update{
		ran(60, autov1alpha1.TimeoutReason),
		ran(0, autov1alpha1.InterruptedReason),
		ran(10, ""),
		ran(20, autov1alpha1.UpdateFailedReason),
		ran(22, autov1alpha1.UpdateFailedReason, func(update *autov1alpha1.Update) { update.Status.NotRun = true }),
		ran(24, autov1alpha1.UpdateConflictReason),
		ran(30, autov1alpha1.InterruptedReason, unstarted),
		ran(40, autov1alpha1.CanceledReason, unstarted, func(update *autov1alpha1.Update) { update.Status.NotRun = true }),
		ran(50, autov1alpha1.InterruptedReason, func(update *autov1alpha1.Update) { update.Spec.StackName = "prod" }),
		ran(55, autov1alpha1.InterruptedReason, func(update *autov1alpha1.Update) { update.Spec.Type = autov1alpha1.UpdateTypePreview }),
		ran(57, "", func(update *autov1alpha1.Update) { update.Spec.Type = autov1alpha1.UpdateTypePreview }),
	}, "dev")
	g.Expect(periods).To(HaveExactElements(equalMessage(period(61, 65)), equalMessage(period(30, 35)), equalMessage(period(21, 25))))
}

func TestAnUpdateMayHaveRunUnlessItsAgentWasAsked(t *testing.T) {
	g := NewWithT(t)
	o := &observation{update: &autov1alpha1.Update{}, workspace: &autov1alpha1.Workspace{}}
	g.Expect(mayHaveRun(o)).To(BeTrue(), "the agent was not asked")
	o.agent.asked = true
	g.Expect(mayHaveRun(o)).To(BeFalse(), "the agent does not know it")
	o.agent.err = client.ErrUnavailable
	g.Expect(mayHaveRun(o)).To(BeTrue(), "the agent did not answer")
	o.update.Annotations = map[string]string{autov1alpha1.NotStartedAnnotation: "true"}
	g.Expect(mayHaveRun(o)).To(BeFalse(), "it was not claimed")
	o.update.Annotations, o.agent = nil, agentView{}
	o.inOtherShard = true
	g.Expect(mayHaveRun(o)).To(BeTrue(), "the agent of another shard is not asked")
}
