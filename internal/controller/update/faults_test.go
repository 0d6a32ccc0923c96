package update

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// touch changes the status of the Workspace, which wakes its Updates.
func (s *fixture) touch(workspace *autov1alpha1.Workspace) {
	s.t.Helper()
	s.setReady(workspace, true, workspace.Status.Conditions[0].Message+" still")
}

func TestArtifactWithAWrongDigestIsNotRunAndRecovers(t *testing.T) {
	s := newFixture(t)
	workspace := s.newReadyWorkspace("app")
	source := s.publish("name: p")
	wrong := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("something else")) })
	s.sources.answer.Store(&wrong)
	s.startController()
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Spec.Source = source })
	s.Eventually(s.current(update)).Should(waitFor("ArtifactDigestMismatch", source.Digest))

	s.sources.answer.Store(nil)
	// The next attempt is due after artifactRetryInterval or later; this makes it due now.
	s.touch(workspace)
	s.Expect(s.finished(update)).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

func TestArtifactIsDeliveredOnce(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.startController()
	source := s.publish("name: p")
	withSource := func(update *autov1alpha1.Update) { update.Spec.Source = source }
	s.finished(s.newUpdate("first", withSource))
	s.finished(s.newUpdate("second", withSource))
	s.Expect(s.agents.script.requests()).To(HaveLen(2))
	s.Expect(s.agents.count("PushSource")).To(Equal(1))
}

func TestSourceOfTheWorkspaceIsTheDefault(t *testing.T) {
	s := newFixture(t)
	source := s.sources.serve("name: p")
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Local = nil
		workspace.Spec.Flux = &autov1alpha1.FluxSource{URL: source.URL, Digest: source.Digest}
	})
	s.startController()
	s.Expect(s.finished(s.newUpdate("up"))).To(haveSucceeded())
	s.Expect(s.agents.script.requests()[0].GetArtifact().GetDigest()).To(Equal(source.Digest))
	s.Expect(s.agents.count("FetchSource")).To(Equal(1), "the agent fetches it, not the controller")
	s.Expect(s.agents.count("PushSource")).To(BeZero())
}

func TestTransientFailuresPass(t *testing.T) {
	s := newFixture(t)
	workspace := s.newReadyWorkspace("app")
	s.agents.answerWith(func(method string, _ any) error {
		if method == "StartOperation" {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateTransientFailureReason, "not now"))
	s.agents.answerWith(nil)
	s.touch(workspace)
	s.Expect(s.finished(update)).To(haveSucceeded())
}

func TestResultIsKeptUntilItIsRecordedAndForgotten(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	var refused atomic.Int32
	s.agents.answerWith(func(method string, _ any) error {
		if method == "ForgetOperation" && refused.Add(1) == 1 {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	s.startController()
	update := s.newUpdate("up")
	s.Expect(s.finished(update)).To(haveSucceeded())
	s.Expect(refused.Load()).To(BeEquivalentTo(2))
	info, err := s.agents.agent(s.key("app")).GetInfo(t.Context())
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(info.GetOperations()).To(BeEmpty())
}

// outputs is a result with one output.
var outputs = &agentpb.Operation{
	State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "done",
	Outputs: map[string]*agentpb.Output{"url": {Value: []byte(`"mine"`)}},
}

func TestSecretOfSomebodyElseIsNotOverwritten(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.returns(outputs)
	s.newSecret("up-stack-outputs", map[string]string{"url": "theirs"})
	s.startController()
	done := s.finished(s.newUpdate("up"))
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Outputs).To(BeEmpty())
	s.Expect(done.Status.Message).To(ContainSubstring("does not belong to this update"))
	s.Expect(done.Status.OutputsNotStored).To(HavePrefix(`secret "up-stack-outputs" exists and does not belong to this update`))
	secret := &corev1.Secret{}
	s.Expect(s.client.Get(t.Context(), s.key("up-stack-outputs"), secret)).To(Succeed())
	s.Expect(secret.Data).To(HaveKeyWithValue("url", []byte("theirs")))
}

// Whoever may create Secrets can create the one with the outputs before the operation ends, with the Update as its owner.
func TestOutputsThatSomebodyElseStoredAreNotThoseOfTheUpdate(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.returns(outputs)
	update := s.newUpdate("up")
	forged := secretOf(update, "up-stack-outputs", map[string][]byte{"url": []byte(`"theirs"`)})
	s.Expect(s.client.Create(t.Context(), forged)).To(Succeed())
	s.startController()
	done := s.finished(update)
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Outputs).To(BeEmpty())
	s.Expect(done.Status.OutputsNotStored).To(ContainSubstring("exists and has other content"))
}

func TestOutputsWaitUntilThoseOfAnEarlierUpdateAreRemoved(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.returns(outputs)
	leftover := &corev1.Secret{Namespace: s.namespace, Name: "up-stack-outputs",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: autov1alpha1.GroupVersion.String(), Kind: "Update", Name: "up", UID: "earlier", Controller: new(true)}}}
	s.Expect(s.client.Create(t.Context(), leftover)).To(Succeed())
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(func() []*agentpb.StartOperationRequest { return s.agents.script.requests() }).Should(HaveLen(1))
	s.Eventually(s.log.String).Should(ContainSubstring(`"action": "store outputs"`))
	current, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(current.IsComplete()).To(BeFalse())

	s.Expect(s.client.Delete(t.Context(), leftover)).To(Succeed()) // as the garbage collector does
	s.Expect(s.finished(update).Status.Outputs).To(Equal("up-stack-outputs"))
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

func TestOutputsThatAreDeniedAreStoredInTheEnd(t *testing.T) {
	for name, denial := range map[string]error{
		"denied":           apierrors.NewForbidden(corev1.Resource("secrets"), "up-stack-outputs", errors.New("exceeded quota")),
		"malformed":        apierrors.NewBadRequest("admission webhook denied the request"),
		"webhook is down":  apierrors.NewInternalError(errors.New("failed calling webhook")),
		"server is unwell": apierrors.NewServiceUnavailable("not now"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			var admitted atomic.Bool
			s.refuse = func(object ctrlclient.Object) error {
				if _, isSecret := object.(*corev1.Secret); isSecret && !admitted.Load() {
					return denial
				}
				return nil
			}
			workspace := s.newReadyWorkspace("app")
			s.agents.script.returns(outputs)
			s.startController()
			update := s.newUpdate("up")
			s.Eventually(s.current(update)).Should(HaveField("Status.Message", "the outputs cannot be stored, which is tried again: "+denial.Error()))
			current, err := s.current(update)()
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(current).To(And(beProgressing(), HaveField("Status.State", autov1alpha1.UpdateStateRunning)), "the agent still has the outputs")

			admitted.Store(true)
			// The next attempt is due after storeRetryInterval or later; this makes it due now.
			s.touch(workspace)
			done := s.finished(update)
			s.Expect(done).To(haveSucceeded())
			s.Expect(done.Status.Outputs).To(Equal("up-stack-outputs"))
			s.Expect(done.Status.OutputsNotStored).To(BeEmpty())
			s.Expect(done.Status.Message).To(Equal("done"))
		})
	}
}

func TestSecretsAppearNowhere(t *testing.T) {
	const canary = "c4n4ry-5ecret"
	s := newFixture(t)
	s.newSecret("credentials", map[string]string{"token": canary, "broken": "\xff" + canary, "json": "{" + canary})
	usingKey := func(key string) func(*autov1alpha1.Workspace) {
		return func(workspace *autov1alpha1.Workspace) {
			workspace.Spec.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: secretKey("credentials", key)}, {Name: "URL", Value: "https://$(TOKEN)@host"}}
			workspace.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{{Key: "token",
				ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "credentials", Key: key}, JSON: key == "json"}}}}}
		}
	}
	in := func(workspace string) func(*autov1alpha1.Update) {
		return func(update *autov1alpha1.Update) { update.Spec.WorkspaceName = workspace }
	}
	s.newReadyWorkspace("app", usingKey("token"))
	s.newReadyWorkspace("broken", usingKey("broken"))
	s.newReadyWorkspace("json", usingKey("json"))
	s.agents.script.returns(&agentpb.Operation{
		State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "done",
		Outputs: map[string]*agentpb.Output{"token": {Value: []byte(`"` + canary + `"`), Secret: true}},
	})
	s.startController()
	s.Expect(s.finished(s.newUpdate("good"))).To(haveSucceeded())
	s.Expect(s.finished(s.newUpdate("broken", in("broken")))).To(haveFailed(autov1alpha1.ConfigInvalidReason, "TOKEN"))
	s.Expect(s.finished(s.newUpdate("json", in("json")))).To(haveFailed(autov1alpha1.ConfigInvalidReason, "token"))
	s.agents.answerWith(func(method string, request any) error {
		if method == "StartOperation" {
			return status.Error(codes.InvalidArgument, fmt.Sprintf("cannot use %v", request))
		}
		return nil
	})
	refused := s.newUpdate("refused")
	s.Expect(s.finished(refused)).To(haveFailed(autov1alpha1.ConfigInvalidReason, "cannot use"))
	s.Eventually(s.events(refused)).ShouldNot(BeEmpty())

	everything := s.log.String()
	updates, events := &autov1alpha1.UpdateList{}, &corev1.EventList{}
	s.Expect(s.client.List(t.Context(), updates)).To(Succeed())
	s.Expect(s.client.List(t.Context(), events)).To(Succeed())
	everything += fmt.Sprintf("%+v %+v", updates.Items, events.Items)
	s.Expect(everything).To(ContainSubstring("cannot use"))
	s.Expect(everything).NotTo(ContainSubstring(canary))
}
