package update

import (
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/hashkey"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/references"
)

func TestRestartInTheMiddleOfAnOperationChangesNothingForIt(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	stop := s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(And(beProgressing(), HaveField("Status.State", autov1alpha1.UpdateStateRunning)))
	before, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())

	stop()
	during, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(during).To(beProgressing())

	watches := s.agents.count("WatchOperation")
	s.startController()
	s.Eventually(func() int { return s.agents.count("WatchOperation") }).Should(BeNumerically(">", watches))
	release()
	done := s.finished(update)
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.StartTime).To(Equal(before.Status.StartTime))
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
	s.Expect(s.agents.count("CancelOperation")).To(BeZero())
}

func TestOperationThatEndedWhileNobodyWatchedIsRecorded(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	stop := s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	stop()
	release()
	s.Eventually(func() (*agentpb.Operation, error) {
		return s.agents.agent(s.key("app")).GetOperation(t.Context(), string(update.UID))
	}).Should(HaveField("State", agentpb.OperationState_OPERATION_STATE_SUCCEEDED))
	s.startController()
	s.Expect(s.finished(update)).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

func TestOperationWhoseStartWasNotRecordedIsFound(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	update := s.newUpdate("up")
	// This is what a controller does that ends before it writes the status.
	_, err := s.agents.agent(s.key("app")).StartOperation(t.Context(), &agentpb.StartOperationRequest{
		Id: string(update.UID), Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev",
		Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}},
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.startController()
	s.Eventually(s.current(update)).Should(beProgressing())
	release()
	s.Expect(s.finished(update)).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

// Meanwhile its Stack got spec.approval.
func TestOperationWhoseStartWasNotRecordedIsFollowedThoughItMayNoLongerStart(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	update := s.newUpdate("up")
	_, err := s.agents.agent(s.key("app")).StartOperation(t.Context(), &agentpb.StartOperationRequest{
		Id: string(update.UID), Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev",
		Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}},
	})
	s.Expect(err).NotTo(HaveOccurred())
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev", Approval: &pulumiv1.ApprovalPolicy{}}}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	s.startController()
	s.Eventually(s.current(update)).Should(beProgressing())
	release()
	s.Expect(s.finished(update)).To(haveSucceeded())

	refused := s.finished(s.newUpdate("next"))
	s.Expect(refused).To(haveFailed(autov1alpha1.ApprovalRequiredReason, ""))
	s.Expect(refused.Status.NotRun).To(BeTrue())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

func TestOperationWhoseStartWasNotRecordedHasTheInputsThatItWasStartedWith(t *testing.T) {
	s := newFixture(t)
	settings := &corev1.ConfigMap{Namespace: s.namespace, Name: "settings", Labels: watchedLabels, Data: map[string]string{"size": "1"}}
	s.Expect(s.client.Create(t.Context(), settings)).To(Succeed())
	workspace := s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Local = &autov1alpha1.LocalSource{}
		workspace.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Inputs: []autov1alpha1.Input{
			{Key: "size", ConfigMap: &autov1alpha1.KeyReference{Name: "settings", Key: "size"}},
		}}}
	})
	release := s.agents.script.blocks()
	s.refuse = func(object ctrlclient.Object) error {
		if update, ok := object.(*autov1alpha1.Update); ok && update.HasStarted() {
			return apierrors.NewServiceUnavailable("not now")
		}
		return nil
	}
	stop := s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.agents.script.requests).Should(HaveLen(1))
	stop()
	current, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(current.HasStarted()).To(BeFalse())

	version := references.VersionOf(references.ConfigMap, settings)
	settings.Data["size"] = "2"
	s.Expect(s.client.Update(t.Context(), settings)).To(Succeed())
	s.refuse = nil
	s.startController()
	s.Eventually(s.current(update)).Should(beProgressing())
	release()
	done := s.finished(update)
	s.Expect(done).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
	key, err := hashkey.Keys{APIReader: s.client}.Of(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(done.Status.InputValuesDigest).To(Equal(inputs.Digest(inputs.ValueIDs(key, []*agentpb.ConfigItem{
		{Key: "size", Value: &agentpb.ConfigItem_Text{Text: "1"}},
	}))))
	s.Expect(done.Status.InputVersionsDigest).To(Equal(references.Digest([]references.Version{version})))
}

// tellsNobody makes watches fail, so that an agent ends without reporting its operation, as an agent does that is killed.
func tellsNobody(method string, _ any) error {
	if method == "WatchOperation" {
		return status.Error(codes.Unavailable, "no watch")
	}
	return nil
}

func TestOperationOfAnAgentThatEndedIsInterrupted(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.agents.answerWith(tellsNobody)
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.agents.stop(s.key("app"))
	s.Eventually(s.current(update)).Should(And(beProgressing(), HaveField("Status.Message", ContainSubstring("the agent does not answer"))))
	s.agents.start(s.key("app"))
	done := s.finished(update)
	s.Expect(done).To(haveFailed(autov1alpha1.InterruptedReason, "the agent ended"))
	s.Expect(done.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
	s.Expect(done.WasInterrupted()).To(BeTrue())
}

func TestOperationOfALostWorkspaceIsInterruptedAndNotRunAgain(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.agents.answerWith(tellsNobody)
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.agents.stop(s.key("app"))
	s.agents.wipe(s.key("app"))
	s.agents.start(s.key("app"))
	done := s.finished(update)
	s.Expect(done).To(haveFailed(autov1alpha1.InterruptedReason, "its outcome is not known"))
	s.Expect(s.agents.script.requests()).To(HaveLen(1))

	// Only a lock that was taken meanwhile is that of the first operation.
	s.newUpdate("next", func(update *autov1alpha1.Update) { update.Spec.AfterInterruption = new(true) })
	s.Eventually(s.agents.script.requests).Should(HaveLen(2))
	s.Expect(s.agents.script.requests()[1].GetInterrupted()).To(HaveExactElements(equalMessage(
		&agentpb.Period{Start: timestamppb.New(done.Status.StartTime.Time), End: timestamppb.New(done.Status.EndTime.Time)})))
}

func TestPreviewOfALostWorkspaceIsRunOnceMore(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	s.agents.answerWith(tellsNobody)
	s.startController()
	update := s.newUpdate("preview", func(update *autov1alpha1.Update) { update.Spec.Type = autov1alpha1.UpdateTypePreview })
	s.Eventually(s.current(update)).Should(beProgressing())
	s.agents.stop(s.key("app"))
	s.agents.wipe(s.key("app"))
	s.agents.start(s.key("app"))
	s.Eventually(s.agents.script.requests).Should(HaveLen(2))
	s.agents.answerWith(nil)
	release()
	s.Expect(s.finished(update)).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(2))
}

func TestOperationOfADeletedWorkspaceIsInterrupted(t *testing.T) {
	s := newFixture(t)
	workspace := s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.Expect(s.client.Delete(t.Context(), workspace)).To(Succeed())
	s.Expect(s.finished(update)).To(haveFailed(autov1alpha1.InterruptedReason, "the workspace was deleted"))
}

func TestOperationIsNotStartedForAnOldStateOfTheUpdate(t *testing.T) {
	for name, finalizers := range map[string][]string{"with finalizer": {pulumiv1.Finalizer}, "without finalizer": nil} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			r := &Reconciler{Client: s.client, APIReader: s.client}
			update := s.newUpdate("up", func(update *autov1alpha1.Update) {
				update.Finalizers, update.Annotations = finalizers, map[string]string{autov1alpha1.NotStartedAnnotation: "true"}
			})
			old := update.DeepCopy()
			s.Expect(r.claim(t.Context(), update, nil)).To(Succeed())
			s.Expect(s.client.Get(t.Context(), ctrlclient.ObjectKeyFromObject(update), update)).To(Succeed())
			s.Expect(update.Finalizers).To(ConsistOf(pulumiv1.Finalizer))
			s.Expect(update.Annotations).NotTo(HaveKey(autov1alpha1.NotStartedAnnotation), "it may have been started from now on")

			before := update.DeepCopy()
			markFailed(update, autov1alpha1.CanceledReason, testTime, "over")
			s.Expect(s.client.Status().Patch(t.Context(), update, ctrlclient.MergeFrom(before))).To(Succeed())
			err := r.claim(t.Context(), old, nil)
			s.Expect(err).To(Or(MatchError(errChanged), WithTransform(apierrors.IsConflict, BeTrue())))
		})
	}
}

func TestStatusOfAnOldStateIsNotWritten(t *testing.T) {
	s := newFixture(t)
	update := s.newUpdate("up")
	before := update.DeepCopy()
	markWaiting(update, autov1alpha1.QueuedReason, "x")
	s.Expect(patch.Status(t.Context(), s.client, before, update)).To(Succeed())

	late := before.DeepCopy()
	markFailed(late, autov1alpha1.InterruptedReason, testTime, "wrong")
	s.Expect(patch.Status(t.Context(), s.client, before, late)).To(WithTransform(apierrors.IsConflict, BeTrue()))

	// A status that has not changed is not written at all.
	version := update.ResourceVersion
	s.Expect(patch.Status(t.Context(), s.client, update.DeepCopy(), update)).To(Succeed())
	current, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(current.ResourceVersion).To(Equal(version))
	s.Expect(current.Status.EndTime).To(Equal((*metav1.Time)(nil)))
}
