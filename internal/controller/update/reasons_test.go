package update

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// The agent names the cause of a failure, and the Update has it as its reason.
func TestEveryCauseOfAFailureIsAReason(t *testing.T) {
	causes := map[agentpb.FailureReason]string{
		agentpb.FailureReason_FAILURE_REASON_UNSPECIFIED:        autov1alpha1.UnknownReason,
		agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED:      autov1alpha1.UpdateFailedReason,
		agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID:    autov1alpha1.ProjectInvalidReason,
		agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED:     autov1alpha1.InstallFailedReason,
		agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND:    autov1alpha1.StackNotFoundReason,
		agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT:    autov1alpha1.UpdateConflictReason,
		agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED:    autov1alpha1.InvalidAccessTokenReason,
		agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER:   autov1alpha1.SecretsProviderFailedReason,
		agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID:     autov1alpha1.ConfigInvalidReason,
		agentpb.FailureReason_FAILURE_REASON_TIMEOUT:            autov1alpha1.TimeoutReason,
		agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES: autov1alpha1.UnexpectedChangesReason,
		agentpb.FailureReason_FAILURE_REASON_PLAN_STALE:         autov1alpha1.PlanStaleReason,
		agentpb.FailureReason_FAILURE_REASON_PLAN_VIOLATED:      autov1alpha1.PlanViolatedReason,
		agentpb.FailureReason_FAILURE_REASON_PLAN_TOO_LARGE:     autov1alpha1.PlanTooLargeReason,

		agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED: autov1alpha1.StateUpgradeRequiredReason,
		agentpb.FailureReason_FAILURE_REASON_POLICY_VIOLATION:       autov1alpha1.PolicyViolationReason,
		agentpb.FailureReason_FAILURE_REASON_AWAITING:               autov1alpha1.AwaitingResourcesReason,
	}
	NewWithT(t).Expect(causes).To(HaveLen(len(agentpb.FailureReason_name)))
	for cause, reason := range causes {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t)
			s.newReadyWorkspace("app")
			s.agents.script.returns(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_FAILED, Failure: cause, Message: "why"})
			s.startController()
			done := s.finished(s.newUpdate("up"))
			s.Expect(done).To(haveFailed(reason, "why"))
			for condition, expected := range map[string]string{
				autov1alpha1.UpdateComplete:    autov1alpha1.UpdateEndedFailedReason,
				autov1alpha1.UpdateProgressing: autov1alpha1.UpdateEndedFailedReason,
			} {
				s.Expect(conditions.GetReason(done, condition)).To(Equal(expected))
			}
		})
	}
}

func TestConditionsOfASuccessFromItsBeginningToItsEnd(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	s.startController()
	update := s.newUpdate("up")
	reasons := func(progressing, failed, complete string) {
		s.Eventually(func(g Gomega) {
			found, err := s.current(update)()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(conditions.GetReason(found, autov1alpha1.UpdateProgressing)).To(Equal(progressing))
			g.Expect(conditions.GetReason(found, autov1alpha1.UpdateFailed)).To(Equal(failed))
			g.Expect(conditions.GetReason(found, autov1alpha1.UpdateComplete)).To(Equal(complete))
		}).Should(Succeed())
	}
	reasons(autov1alpha1.UpdateProgressingReason, autov1alpha1.UpdateProgressingReason, autov1alpha1.UpdateProgressingReason)
	release()
	reasons(autov1alpha1.UpdateCompleteReason, autov1alpha1.UpdateSucceededReason, autov1alpha1.UpdateUpdatedReason)
}

func TestDeliveryThatTakesLongIsShown(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.holdDeliveries()
	s.startController()
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Spec.Source = s.publish("name: p") })
	s.Eventually(s.current(update)).WithTimeout(briefWait + 10*time.Second).Should(waitFor(autov1alpha1.SourceDeliveryReason, "is being delivered"))
	release()
	s.Expect(s.finished(update)).To(haveSucceeded())
}

func TestArtifactThatTakesLongIsShown(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	source := s.publish("name: p")
	release := make(chan struct{})
	waits := http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		<-release
		http.Error(response, "try again", http.StatusServiceUnavailable)
	})
	s.sources.answer.Store(&waits)
	s.startController()
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Spec.Source = source })
	s.Eventually(s.current(update)).WithTimeout(briefWait + 10*time.Second).Should(waitFor(autov1alpha1.ArtifactPendingReason, "is being fetched"))
	s.sources.answer.Store(nil)
	close(release)
	s.Expect(s.finished(update)).To(haveSucceeded())
}

func TestUpdateThatIsDeletedSaysThatItWasCanceled(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.startController()
	// Another finalizer holds the Update, so that its end can be seen.
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Finalizers = []string{"example.com/held"} })
	s.Eventually(s.current(update)).Should(beProgressing())
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.Eventually(s.current(update)).Should(haveFailed(autov1alpha1.CanceledReason, "cancelled"))
	s.Expect(s.client.Patch(t.Context(), update, ctrlclient.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).
		To(Succeed())
	s.Eventually(s.gone(update)).Should(BeTrue())
}

// The API server admits an Update without a type, or with a type that is no operation.
func TestUpdateThatDescribesNoOperationIsAborted(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.startController()
	for name, tt := range map[string]struct {
		change func(*autov1alpha1.UpdateSpec)
		says   string
	}{
		"without-type":  {func(spec *autov1alpha1.UpdateSpec) { spec.Type = "" }, `spec.type "" is not one of preview, up, refresh, destroy`},
		"other-type":    {func(spec *autov1alpha1.UpdateSpec) { spec.Type = "carrot" }, `spec.type "carrot" is not one of`},
		"huge-type":     {func(spec *autov1alpha1.UpdateSpec) { spec.Type = autov1alpha1.UpdateType(strings.Repeat("u", 100_000)) }, "is not one of"},
		"without-stack": {func(spec *autov1alpha1.UpdateSpec) { spec.StackName = "" }, "spec.stackName is empty"},
	} {
		update := s.newUpdate(name, func(update *autov1alpha1.Update) { tt.change(&update.Spec) })
		done := s.finished(update)
		s.Expect(done).To(haveFailed(autov1alpha1.AbortedReason, tt.says))
		s.Expect(conditions.GetReason(done, autov1alpha1.UpdateComplete)).To(Equal(autov1alpha1.UpdateEndedFailedReason))
		s.Expect(conditions.GetReason(done, autov1alpha1.UpdateProgressing)).To(Equal(autov1alpha1.UpdateEndedFailedReason))
		s.Expect(len(done.Status.Message)).To(BeNumerically("<", 1000))
	}
	s.Expect(s.agents.script.requests()).To(BeEmpty())
	nowhere := s.newUpdate("nowhere", func(update *autov1alpha1.Update) { update.Spec.WorkspaceName = "" })
	s.Eventually(s.current(nowhere)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotFoundReason, ""))
	s.Expect(s.finished(s.newUpdate("up"))).To(haveSucceeded())
}
