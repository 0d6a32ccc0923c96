package workspace

import (
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestWorkspaceBecomesReadyWithItsAgent(t *testing.T) {
	s := newFixture(t)
	s.startController()
	for _, spec := range []autov1alpha1.WorkspaceSpec{
		{},
		{Local: &autov1alpha1.LocalSource{Dir: "program"}},
		{Git: &autov1alpha1.GitSource{URL: "https://example.invalid/repository", Ref: "main"}},
	} {
		workspace := &autov1alpha1.Workspace{Namespace: s.namespace, GenerateName: "app-", Spec: spec}
		s.Expect(s.client.Create(t.Context(), workspace)).To(Succeed())
		s.await(workspace, beReady())
		s.Expect(workspace.Status.Address).To(And(HavePrefix("unix:"+s.options.Dir), HaveSuffix("agent.sock")))
		s.Expect(workspace.Status.PulumiVersion).To(HavePrefix("v3."))
	}
}

// betweenAgents is a restart delay for tests that check what happens between two agents.
const betweenAgents = 3 * time.Second

func TestReadyIsLoweredAtOnceWhenTheAgentIsKilledAndRaisedAgain(t *testing.T) {
	s := newFixture(t)
	s.options.RestartDelay = betweenAgents
	s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beReady())
	before := s.agent()

	s.Expect(syscall.Kill(before, syscall.SIGKILL)).To(Succeed())
	s.await(workspace, beUnready(autov1alpha1.InitializationFailedReason))
	s.await(workspace, HaveField("Status.Address", BeEmpty()))
	s.Expect(conditions.GetReason(workspace, meta.ReconcilingCondition)).To(Equal(meta.ProgressingWithRetryReason))
	s.Eventually(s.events(workspace, autov1alpha1.InitializationFailedReason)).Should(ConsistOf(ContainSubstring("ended by a signal (killed)")))

	s.await(workspace, beReady())
	s.Expect(s.agent()).NotTo(Equal(before))
}

func TestWorkspaceWhoseAgentCrashesSaysWhy(t *testing.T) {
	s := newFixture(t)
	s.options.AgentArgs = []string{"--no-such-flag"}
	s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beUnready(autov1alpha1.InitializationFailedReason))
	s.Expect(conditions.GetMessage(workspace, meta.ReadyCondition)).To(And(
		ContainSubstring("ended with exit status"), ContainSubstring("it is started again at"), ContainSubstring("no-such-flag")))
	s.Expect(workspace.Status.ObservedGeneration).To(Equal(int64(-1)), "waiting for it goes on")
}

func TestDeletedWorkspaceLeavesNothing(t *testing.T) {
	s := newFixture(t)
	s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beReady())
	s.Expect(s.directories()).To(HaveLen(1))

	s.Expect(s.client.Delete(t.Context(), workspace)).To(Succeed())

	s.Eventually(s.agent).Should(BeZero())
	s.Eventually(s.directories).Should(BeEmpty())
}

func TestWorkspaceThatWaitsForItsDependentsKeepsItsAgent(t *testing.T) {
	s := newFixture(t)
	s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beReady())
	agent := s.agent()
	before := workspace.DeepCopy()
	workspace.Finalizers = []string{"example.com/dependents"}
	s.Expect(s.client.Patch(t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())

	s.Expect(s.client.Delete(t.Context(), workspace)).To(Succeed())
	s.await(workspace, beUnready(autov1alpha1.DeletingReason))
	s.Expect(s.agent()).To(Equal(agent), "an operation may be on its way to its end")

	before = workspace.DeepCopy()
	workspace.Finalizers = nil
	s.Expect(s.client.Patch(t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())
	s.Eventually(s.agent).Should(BeZero())
	s.Eventually(s.directories).Should(BeEmpty())
}

func TestNewControllerWritesNothingWhenNothingChanged(t *testing.T) {
	s := newFixture(t)
	stop := s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beReady())
	stop()
	s.Expect(s.agent()).To(BeZero(), "it had no operation")

	s.startController()

	// A second Workspace shows that the new controller works; it sees both from the start.
	s.await(s.create("other", autov1alpha1.WorkspaceSpec{}), beReady())
	version := workspace.ResourceVersion
	s.await(workspace, beReady())
	s.Expect(workspace.ResourceVersion).To(Equal(version))
	s.Expect(agentsIn(s.options.Dir)).To(HaveLen(1), "an agent that nobody needs is not started")
}

func TestAgentThatRestsChangesNothing(t *testing.T) {
	s := newFixture(t)
	s.options.IdleTimeout = 500 * time.Millisecond
	s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beReady())
	version := workspace.ResourceVersion

	s.Eventually(s.agent).Should(BeZero())

	s.Consistently(s.agent, "1s", "50ms").Should(BeZero())
	s.await(workspace, beReady())
	s.Expect(workspace.ResourceVersion).To(Equal(version))
}

func TestFieldsWithoutEffectAreSaidOncePerGeneration(t *testing.T) {
	s := newFixture(t)
	s.options.RestartDelay = betweenAgents
	s.startController()
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{
		Image:     "pulumi/pulumi",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
	})
	s.await(workspace, beReady())
	s.Eventually(s.events(workspace, eventIgnored)).Should(ConsistOf(And(ContainSubstring("image, resources"), HaveSuffix("x1"))))

	// The same generation is reconciled again when the agent is replaced.
	s.Expect(syscall.Kill(s.agent(), syscall.SIGKILL)).To(Succeed())
	s.await(workspace, beUnready(autov1alpha1.InitializationFailedReason))
	s.await(workspace, beReady())
	before := workspace.DeepCopy()
	workspace.Spec.Image = ""
	s.Expect(s.client.Patch(t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())
	s.Eventually(s.events(workspace, eventIgnored)).Should(ConsistOf(
		And(ContainSubstring("image, resources"), HaveSuffix("x1")),
		And(Not(ContainSubstring("image")), HaveSuffix("x1")),
	))
	s.Expect(strings.Join(s.directories(), "")).To(HaveLen(12))
}
