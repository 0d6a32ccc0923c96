package update

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/operation"
)

// savesPlans makes operations save a plan with this file and text.
func (s *fixture) savesPlans(file []byte, text string) {
	digest := func(letter string) string { return strings.Repeat(letter, 64) }
	s.agents.script.plays(func(context.Context, *agentpb.StartOperationRequest, func(*agentpb.Operation)) *agentpb.Operation {
		results := s.agents.script.paths.Results
		err := os.WriteFile(filepath.Join(results, operation.PlanText), []byte(text), 0o600)
		if len(file) > 0 {
			err = errors.Join(err, os.WriteFile(filepath.Join(results, operation.PlanFile), file, 0o600))
		}
		if err != nil {
			return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_FAILED, Message: err.Error()}
		}
		return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "planned", Plan: &agentpb.Plan{
			Digests:       &agentpb.PlanDigests{Inputs: digest("a"), Changes: digest("b"), State: digest("c")},
			PulumiVersion: "v3.250.0", Size: int64(10 * len(file)), Unknowns: 2,
		}}
	})
}

// randomBytes returns bytes that do not get smaller when they are compressed, such as bytes that are compressed already.
func randomBytes(size int) []byte {
	content, source := make([]byte, size), rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(source.Uint32())
	}
	return content
}

func savesPlanOf(update *autov1alpha1.Update) {
	update.Spec.Type, update.Spec.SavePlan = autov1alpha1.UpdateTypePreview, new(true)
}

func TestLargePlanIsInSeveralSecretsAndComesBackAsItWas(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) { workspace.Spec.Local = &autov1alpha1.LocalSource{} })
	file, text := randomBytes(2*agentpb.MaxPlanPart+100_000), "a text"
	s.savesPlans(file, text)
	s.startController()
	plan := s.finished(s.newUpdate("large", savesPlanOf))
	s.Expect(plan).To(haveSucceeded())
	saved := plan.Status.Plan
	s.Expect(saved.Secrets).To(Equal([]string{"large-plan-0", "large-plan-1", "large-plan-2"}))
	s.Expect(saved.StoredSize).To(BeEquivalentTo(len(file)))
	s.Expect(saved.Size).To(BeEquivalentTo(10 * len(file)))
	s.Expect(saved.Unknowns).To(BeEquivalentTo(2))
	s.Expect(saved.Digest).To(Equal(saved.CalculateDigest()))
	s.Expect(saved.ChangesDigest).To(Equal("sha256:" + strings.Repeat("b", 64)))
	s.Expect(saved.StateDigest).To(Equal("sha256:" + strings.Repeat("c", 64)))
	s.Expect(saved.HasText([]byte(text))).To(BeTrue())
	var stored []byte
	for _, name := range saved.Secrets {
		secret := &corev1.Secret{}
		s.Expect(s.client.Get(t.Context(), s.key(name), secret)).To(Succeed())
		s.Expect(secret.Immutable).To(HaveValue(BeTrue()))
		s.Expect(metav1.IsControlledBy(secret, plan)).To(BeTrue())
		s.Expect(secret.Labels).To(HaveKeyWithValue(autov1alpha1.UpdateNameLabel, "large"))
		stored = append(stored, secret.Data[autov1alpha1.PlanFileKey]...)
		if name == "large-plan-2" {
			s.Expect(string(secret.Data[autov1alpha1.PlanTextKey])).To(Equal(text))
		}
	}
	s.Expect(stored).To(Equal(file))

	// The agent that carries out the plan gets all of the file, and the key with which the digests were made.
	var taken []byte
	s.agents.script.plays(func(context.Context, *agentpb.StartOperationRequest, func(*agentpb.Operation)) *agentpb.Operation {
		taken, _ = os.ReadFile(s.agents.script.paths.Plan)
		return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED}
	})
	s.Expect(s.finished(s.newUpdate("up", func(update *autov1alpha1.Update) {
		update.Spec.Plan = &autov1alpha1.PlanReference{Name: "large", Digest: saved.Digest}
	}))).To(haveSucceeded())
	s.Expect(taken).To(Equal(file))
	requests := s.agents.script.requests()
	s.Expect(requests[1].GetKind()).To(Equal(agentpb.OperationKind_OPERATION_KIND_PLANNED_UP))
	s.Expect(requests[1].GetPlan().GetKey()).To(And(HaveLen(agentpb.PlanKeySize), Equal(requests[0].GetPlan().GetKey())))
	s.Expect(requests[1].GetPlan().GetExpected().GetState()).To(Equal(strings.Repeat("c", 64)))
	key := &corev1.Secret{}
	s.Expect(s.client.Get(t.Context(), s.key("app"+autov1alpha1.PlanKeySuffix), key)).To(Succeed())
	s.Expect(key.OwnerReferences).To(ConsistOf(HaveField("Kind", autov1alpha1.WorkspaceKind)), "it goes with the Workspace")
}

// TestPlanThatIsTooLargeIsNotSaved covers an agent that reports that its plan is too large, and an agent that does not report it.
func TestPlanThatIsTooLargeIsNotSaved(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) { workspace.Spec.Local = &autov1alpha1.LocalSource{} })
	s.agents.script.returns(&agentpb.Operation{
		State: agentpb.OperationState_OPERATION_STATE_FAILED, Failure: agentpb.FailureReason_FAILURE_REASON_PLAN_TOO_LARGE, Message: "use `enforce: Inputs`",
	})
	s.startController()
	s.Expect(s.finished(s.newUpdate("large", savesPlanOf))).To(haveFailed(autov1alpha1.PlanTooLargeReason, "use `enforce: Inputs`"))

	s.savesPlans(nil, "a text")
	s.agents.attackWith(func(_ types.NamespacedName, method string, stream grpc.ServerStream) bool {
		if method != "GetPlan" {
			return false
		}
		_ = stream.SendMsg(&agentpb.PlanPart{FileSize: agentpb.MaxPlanSize + 1})
		return true
	})
	done := s.finished(s.newUpdate("larger", savesPlanOf))
	s.Expect(done).To(haveFailed(autov1alpha1.PlanTooLargeReason, "the plan is too large to be kept"))
	s.Expect(done.Status.Message).To(ContainSubstring("enforce: Inputs"))
	s.Expect(done.Status.Plan).To(BeNil())
	s.Expect(s.client.Get(t.Context(), s.key("larger-plan-0"), &corev1.Secret{})).NotTo(Succeed())
}

func TestPlanIsNotStoredInTheSecretOfSomebodyElse(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) { workspace.Spec.Local = &autov1alpha1.LocalSource{} })
	s.newSecret("mine-plan-0", map[string]string{autov1alpha1.PlanTextKey: "nothing to see here"})
	s.savesPlans(nil, "a text")
	s.startController()
	update := s.newUpdate("mine", savesPlanOf)
	s.Eventually(func() string {
		s.Expect(s.client.Get(t.Context(), s.key("mine"), update)).To(Succeed())
		return update.Status.Message
	}).Should(ContainSubstring(`secret "mine-plan-0" exists, and is not of this update`))
	s.Expect(update.IsComplete()).To(BeFalse())
	s.Expect(s.client.Delete(t.Context(), &corev1.Secret{Namespace: s.namespace, Name: "mine-plan-0"})).To(Succeed())
	s.Expect(s.finished(update).Status.Plan.Secrets).To(Equal([]string{"mine-plan-0"}))
}
