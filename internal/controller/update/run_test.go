package update

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestUpdateRunsItsOperationWithAllInputs(t *testing.T) {
	s := newFixture(t)
	s.newSecret("credentials", map[string]string{"token": "t0ken"})
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Env = []corev1.EnvVar{{Name: "PLAIN", Value: "1"}, {Name: "TOKEN", ValueFrom: secretKey("credentials", "token")}}
		workspace.Spec.Stacks = []autov1alpha1.WorkspaceStack{{
			Name: "dev", Create: new(false), SecretsProvider: new("passphrase"), Environment: []string{"org/env"},
			Config: []autov1alpha1.ConfigItem{
				{Key: "size", Value: &apiextensionsv1.JSON{Raw: []byte(`9007199254740993`)}},
				{Key: "token", ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "credentials", Key: "token"}}},
			},
		}}
	})
	s.agents.script.returns(&agentpb.Operation{
		State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "2 created", Permalink: "https://console/1",
		ResourceChanges: map[string]int64{"create": 2}, Project: &agentpb.ProjectSource{Name: "p", Runtime: "yaml"},
		Outputs: map[string]*agentpb.Output{"url": {Value: []byte(`"http://x"`)}, "key": {Value: []byte(`"s3cret"`), Secret: true}},
	})
	s.startController()
	source := s.publish("name: p")
	update := s.newUpdate("up", func(update *autov1alpha1.Update) {
		update.Spec.Source = source
		update.Spec.Target = []string{"urn:a"}
		update.Spec.Refresh = new(true)
		update.Spec.Timeout = &metav1.Duration{Duration: time.Hour}
	})

	done := s.finished(update)
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Message).To(Equal("2 created"))
	s.Expect(done.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded))
	s.Expect(done.Status.Revision).To(Equal("main@sha1:5a1f"))
	s.Expect(done.Status.ResourceChanges).To(Equal(map[string]int64{"create": 2}))
	s.Expect(done.Status.Permalink).To(Equal("https://console/1"))
	s.Expect(done.Status.ProjectInfo).To(Equal(&autov1alpha1.ProjectInfo{Name: "p", Runtime: "yaml"}))
	s.Expect(done.Status.ObservedGeneration).To(Equal(done.Generation))
	s.Expect(done.Status.StartTime).NotTo(BeNil())
	s.Expect(done.Status.EndTime).NotTo(BeNil())

	secret := &corev1.Secret{}
	s.Expect(done.Status.Outputs).To(Equal("up-stack-outputs"))
	s.Expect(s.client.Get(t.Context(), s.key(done.Status.Outputs), secret)).To(Succeed())
	s.Expect(secret.Data).To(Equal(map[string][]byte{"url": []byte(`"http://x"`), "key": []byte(`"s3cret"`)}))
	s.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["key"]`))
	s.Eventually(s.events(update)).Should(ConsistOf("Normal UpdateSucceeded: 2 created"))

	s.Expect(s.agents.script.requests()).To(HaveLen(1))
	request := s.agents.script.requests()[0]
	s.Expect(request.GetId()).To(Equal(string(update.UID)))
	s.Expect(request.GetKind()).To(Equal(agentpb.OperationKind_OPERATION_KIND_UP))
	s.Expect(request.GetArtifact().GetDigest()).To(Equal(source.Digest))
	s.Expect(request.GetCreateStack()).To(BeFalse())
	s.Expect(request.GetSecretsProvider()).To(Equal("passphrase"))
	s.Expect(request.GetEnvironments()).To(Equal([]string{"org/env"}))
	s.Expect(request.GetTimeout().AsDuration()).To(Equal(time.Hour))
	s.Expect(request.GetOptions().GetTarget()).To(Equal([]string{"urn:a"}))
	s.Expect(request.GetOptions().GetRefresh()).To(BeTrue())
	s.Expect(request.GetCommitMetadata()).To(HaveKeyWithValue("PULUMI_GIT_HEAD", "5a1f"))
	s.Expect(request.GetEnv()).To(HaveExactElements(
		equalMessage(&agentpb.EnvironmentVariable{Name: "PLAIN", Value: &agentpb.EnvironmentVariable_Text{Text: "1"}}),
		equalMessage(&agentpb.EnvironmentVariable{Name: "TOKEN", Secret: true, Value: &agentpb.EnvironmentVariable_Text{Text: "t0ken"}})))
	s.Expect(request.GetConfig()).To(HaveExactElements(
		equalMessage(&agentpb.ConfigItem{Key: "size", Value: &agentpb.ConfigItem_Json{Json: "9007199254740993"}}),
		equalMessage(&agentpb.ConfigItem{Key: "token", Secret: true, Value: &agentpb.ConfigItem_Text{Text: "t0ken"}})))

	info, err := s.agents.agent(s.key("app")).GetInfo(t.Context())
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(info.GetOperations()).To(BeEmpty(), "the agent forgets what is recorded")
}

func secretKey(name, key string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Name: name, Key: key}}
}

func TestFailureIsRecordedWithItsReason(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.returns(&agentpb.Operation{
		State: agentpb.OperationState_OPERATION_STATE_FAILED, Failure: agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER, Message: "wrong passphrase",
	})
	s.startController()
	update := s.newUpdate("up")
	done := s.finished(update)
	s.Expect(done).To(haveFailed(autov1alpha1.SecretsProviderFailedReason, "wrong passphrase"))
	s.Expect(done.Status.Outputs).To(BeEmpty())
	s.Eventually(s.events(update)).Should(ConsistOf("Warning UpdateFailed: wrong passphrase"))
}

func TestWarningsOfPulumiAreAnEventOfTheStack(t *testing.T) {
	s := newFixture(t)
	workspace := s.newReadyWorkspace("app")
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev"}}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	const warning = "Field 'creat' does not exist on Object 'customTimeouts'"
	s.agents.script.returns(&agentpb.Operation{
		State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "done; pulumi warned: " + warning, Warnings: []string{warning, "another\nline"},
	})
	s.startController()
	owners := []metav1.OwnerReference{
		*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
		{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID},
	}
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.OwnerReferences = owners })
	s.Expect(s.finished(update)).To(And(haveSucceeded(), HaveField("Status.Message", HaveSuffix(warning))))
	s.Eventually(s.events(&autov1alpha1.Update{UID: stack.UID})).Should(
		ConsistOf("Warning PulumiWarning: " + warning + "; another line"))
	s.Expect(s.events(update)()).To(BeEmpty())
	again := s.newUpdate("again", func(update *autov1alpha1.Update) { update.OwnerReferences = owners })
	s.Expect(s.finished(again)).To(HaveField("Status.Message", HaveSuffix(warning)))
	s.Expect(s.events(&autov1alpha1.Update{UID: stack.UID})()).To(HaveLen(1), "the program is still the same")

	alone := s.newUpdate("alone")
	s.finished(alone)
	s.Eventually(s.events(alone)).Should(ConsistOf(HavePrefix("Warning PulumiWarning: "), HavePrefix("Normal UpdateSucceeded: ")))
}

func TestUpdatesOfAWorkspaceRunOneAfterTheOther(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	release := s.agents.script.blocks()
	s.startController()
	first := s.newUpdate("b-first")
	s.Eventually(s.current(first)).Should(beProgressing())
	second := s.newUpdate("c-second")
	// The Updates may be created in the same second, so that their names decide.
	third := s.newUpdate("d-third")
	s.Eventually(s.current(second)).Should(And(waitFor(autov1alpha1.QueuedReason, `"b-first"`), HaveField("Status.State", autov1alpha1.UpdateStateQueued)))
	s.Eventually(s.current(third)).Should(waitFor(autov1alpha1.QueuedReason, `"b-first"`))
	s.Expect(s.agents.script.requests()).To(HaveLen(1))

	release()
	s.finished(third)
	var order []string
	for _, request := range s.agents.script.requests() {
		order = append(order, request.GetId())
	}
	s.Expect(order).To(Equal([]string{string(first.UID), string(second.UID), string(third.UID)}))
}

func TestUpdateWaitsForItsWorkspace(t *testing.T) {
	s := newFixture(t)
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotFoundReason, `workspace "app" does not exist`))

	workspace := s.newWorkspace("app")
	s.setReady(workspace, false, "the agent starts")
	s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotReadyReason, "Initializing: the agent starts"))
	s.Expect(s.agents.script.requests()).To(BeEmpty())

	s.agents.start(s.key("app"))
	s.setReady(workspace, true, "ready")
	s.Expect(s.finished(update)).To(haveSucceeded())
}

func TestUpdateWaitsForASecretAndItsKey(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: secretKey("credentials", "token")}}
	})
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(waitFor("SecretNotFound", `secret "credentials", which environment variable "TOKEN" needs`))
	secret := s.newSecret("credentials", map[string]string{"other": "x"})
	s.Eventually(s.current(update)).Should(waitFor("SecretNotFound", `key "token" in secret "credentials"`))
	s.Expect(s.agents.script.requests()).To(BeEmpty())

	secret.StringData = map[string]string{"token": "t0ken"}
	s.Expect(s.client.Update(t.Context(), secret)).To(Succeed())
	s.Expect(s.finished(update)).To(haveSucceeded())
}

func TestWhatOnlyAnEditCanMendFailsAtOnce(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Env = []corev1.EnvVar{{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	})
	s.startController()
	done := s.finished(s.newUpdate("up"))
	s.Expect(done).To(haveFailed(autov1alpha1.ConfigInvalidReason, `environment variable "IP"`))
	s.Expect(done.Status.EndTime).NotTo(BeNil())
	s.Expect(s.agents.script.requests()).To(BeEmpty())
}

func TestProgressIsShownWithFewWrites(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	proceed := make(chan struct{})
	s.agents.script.plays(func(_ context.Context, _ *agentpb.StartOperationRequest, progress func(*agentpb.Operation)) *agentpb.Operation {
		for i := range 2000 {
			progress(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_RUNNING, Message: fmt.Sprint("resource ", i+1),
				ResourceChanges: map[string]int64{"create": int64(i + 1)}})
		}
		<-proceed
		return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED}
	})
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(And(beProgressing(), HaveField("Status.Message", "resource 2000"),
		HaveField("Status.State", autov1alpha1.UpdateStateRunning), HaveField("Status.ResourceChanges", HaveKeyWithValue("create", int64(2000)))))
	running, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.writes(running)).To(BeNumerically("<", 30))
	close(proceed)
	s.Expect(s.finished(update)).To(haveSucceeded())
}

// writes returns how often the Update was written, judging by its resource version: no other test runs in the meantime.
func (s *fixture) writes(update *autov1alpha1.Update) int {
	first, err := json.Number(s.createdAt(update)).Int64()
	s.Expect(err).NotTo(HaveOccurred())
	last, err := json.Number(update.ResourceVersion).Int64()
	s.Expect(err).NotTo(HaveOccurred())
	return int(last - first)
}

// createdAt returns the resource version of the Workspace, whose write was the last one before the Update was created.
func (s *fixture) createdAt(update *autov1alpha1.Update) string {
	workspace := &autov1alpha1.Workspace{}
	s.Expect(s.client.Get(s.t.Context(), s.key(update.Spec.WorkspaceName), workspace)).To(Succeed())
	return workspace.ResourceVersion
}

func TestCompleteUpdateExpires(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.startController()
	kept := s.newUpdate("kept", func(update *autov1alpha1.Update) {
		update.Spec.TTLAfterCompleted = &metav1.Duration{Duration: time.Hour}
	})
	s.finished(kept)
	expired := s.newUpdate("expired", func(update *autov1alpha1.Update) {
		update.Spec.TTLAfterCompleted = &metav1.Duration{Duration: 2 * time.Second}
	})
	s.finished(expired)
	s.Eventually(func() bool { _, err := s.current(expired)(); return apierrors.IsNotFound(err) }).Should(BeTrue())
	s.Eventually(s.events(expired)).Should(ContainElement("Normal UpdateExpired: deleted 2s after its completion"))
	_, err := s.current(kept)()
	s.Expect(err).NotTo(HaveOccurred())
}

func TestUpdateExpiresOnlyOnceItsStackRecordedIt(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: "app",
		Spec: pulumiv1.StackSpec{Stack: "dev"},
	}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	s.startController()
	update := s.newUpdate("short", func(update *autov1alpha1.Update) {
		update.Spec.TTLAfterCompleted = &metav1.Duration{}
		update.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID},
		}
	})
	s.Expect(s.finished(update)).To(haveSucceeded())
	s.Consistently(s.gone(update), 2*awaitedInterval).Should(BeFalse())

	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Name: update.Name, State: pulumiv1.StackUpdateSucceeded}
	s.Expect(s.client.Status().Update(t.Context(), stack)).To(Succeed())
	s.Eventually(s.gone(update)).Should(BeTrue())
}

// oneStack is an API server with one Stack.
type oneStack struct {
	ctrlclient.Client
	stack *pulumiv1.Stack
}

func (s oneStack) Get(_ context.Context, _ ctrlclient.ObjectKey, into ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	s.stack.DeepCopyInto(into.(*pulumiv1.Stack))
	return nil
}

func (s oneStack) List(context.Context, ctrlclient.ObjectList, ...ctrlclient.ListOption) error {
	return nil
}

// Each Stack with outputs has such an Update, for as long as the Stack is not updated.
func TestUpdateThatIsKeptForItsOutputsIsSeldomLookedAt(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "n", Name: "app", UID: "stack"}
	stack.Spec.ShareOutputs = []pulumiv1.OutputShare{{Namespaces: []string{"*"}, Outputs: []string{"url"}}}
	update := &autov1alpha1.Update{
		Namespace: "n", Name: "app-1", UID: "update", CreationTimestamp: metav1.Now(),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))},
		Spec:            autov1alpha1.UpdateSpec{TTLAfterCompleted: &metav1.Duration{}},
	}
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "")
	reads := oneStack{stack: stack}
	r := &Reconciler{Client: reads, APIReader: reads}
	next := func() time.Duration {
		result, err := r.expire(t.Context(), update)
		g.Expect(err).NotTo(HaveOccurred())
		return result.RequeueAfter
	}
	g.Expect(next()).To(Equal(awaitedInterval), "its result is not recorded")
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Name: update.Name}
	stack.Status.StoredOutputs = &pulumiv1.StoredOutputs{Update: update.Name, UID: update.UID}
	g.Expect(next()).To(BeNumerically(">=", time.Minute))
}
