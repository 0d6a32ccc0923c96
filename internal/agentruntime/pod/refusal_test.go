package pod

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The refusals come from the real API server, and the backoff to be shortened is that of the real StatefulSet controller.
func TestPodThatIsRefusedSaysWhyAndComesWhenTheCauseIsGone(t *testing.T) {
	suite.Long(t, "waits for pauses of the controllers")
	for _, tt := range []struct {
		name            string
		spec            autov1alpha1.WorkspaceSpec
		refuse, mend    func(s *fixture)
		reason, message string
	}{
		{
			name: "quota",
			refuse: func(s *fixture) {
				quota := &corev1.ResourceQuota{Namespace: s.namespace, Name: "none"}
				quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
				s.Expect(s.client.Create(s.t.Context(), quota)).To(Succeed())
				s.Eventually(func() (corev1.ResourceList, error) { return quota.Status.Hard, s.get("none", quota) }).ShouldNot(BeEmpty())
			},
			mend: func(s *fixture) {
				s.Expect(s.client.Delete(s.t.Context(), &corev1.ResourceQuota{Namespace: s.namespace, Name: "none"})).To(Succeed())
			},
			reason: autov1alpha1.QuotaExceededReason, message: "exceeded quota: none",
		},
		{
			name:   "pod security",
			spec:   autov1alpha1.WorkspaceSpec{SecurityProfile: autov1alpha1.SecurityProfileBaseline},
			refuse: func(s *fixture) { s.labelNamespace("restricted") },
			mend:   func(s *fixture) { s.labelNamespace("baseline") },
			reason: autov1alpha1.PodSecurityViolationReason, message: `violates PodSecurity "restricted:latest"`,
		},
		{
			name:   "service account",
			spec:   autov1alpha1.WorkspaceSpec{ServiceAccountName: "deployer"},
			refuse: func(*fixture) {},
			mend: func(s *fixture) {
				s.Expect(s.client.Create(s.t.Context(), &corev1.ServiceAccount{Namespace: s.namespace, Name: "deployer"})).To(Succeed())
			},
			reason: autov1alpha1.ServiceAccountNotFoundReason, message: `serviceaccount "deployer" not found`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := startFixture(t)
			tt.refuse(s)
			workspace := s.create("app", tt.spec)
			s.Eventually(s.status(workspace)).Should(And(beUnready(tt.reason), HaveField("Message", ContainSubstring(tt.message)), HaveField("Failing", true)))
			// By then, the StatefulSet controller by itself would wait longer than the test.
			s.Eventually(s.retries(workspace)).Should(BeNumerically(">=", 3))
			tt.mend(s)
			s.pod(workspace)
			s.Eventually(s.status(workspace)).ShouldNot(beUnready(tt.reason))
		})
	}
}

// retries returns how often the creation of the pod was tried again.
func (s *fixture) retries(workspace *autov1alpha1.Workspace) func() int {
	return func() int {
		tracked := s.runtime.tracker(workspace)
		defer tracked.mu.Unlock()
		return tracked.retries
	}
}

// labelNamespace makes the namespace enforce a level of the Pod Security Standards.
func (s *fixture) labelNamespace(level string) {
	s.t.Helper()
	namespace := &corev1.Namespace{Name: s.namespace}
	patch := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"` + level + `"}}}`)
	s.Expect(s.client.Patch(s.t.Context(), namespace, ctrlclient.RawPatch("application/merge-patch+json", patch))).To(Succeed())
}

func TestPodOfTheRestrictedProfileRunsWhereThatIsEnforced(t *testing.T) {
	s := newFixture(t)
	s.labelNamespace("restricted")
	s.startController()
	s.pod(s.create("app", autov1alpha1.WorkspaceSpec{}))
}

// broken is a client of an API server that accepts no objects and lists no events, because a webhook or its storage of events does not answer.
type broken struct{ ctrlclient.Client }

func (b broken) Apply(context.Context, k8sruntime.ApplyConfiguration, ...ctrlclient.ApplyOption) error {
	return apierrors.NewInternalError(errors.New("failed calling webhook"))
}

func (b broken) List(context.Context, ctrlclient.ObjectList, ...ctrlclient.ListOption) error {
	return apierrors.NewInternalError(errors.New("no events"))
}

func TestPodThatWorksStaysReadyWhileNothingCanBeApplied(t *testing.T) {
	s, workspace, pod, _ := startReady(t)
	options := s.runtime.options
	options.Client, options.APIReader, options.AgentImage = broken{options.Client}, broken{s.client}, "agent:v2"
	upgraded, err := New(t.Context(), options)
	s.Expect(err).NotTo(HaveOccurred())
	status, err := upgraded.Ensure(t.Context(), workspace, false)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(status).To(And(beReady(), HaveField("RetryAfter", rejectedInterval)))
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())

	edited := workspace.DeepCopy()
	edited.Spec.Image = "example.com/other"
	_, err = upgraded.Ensure(t.Context(), edited, false)
	s.Expect(err).To(MatchError(ContainSubstring("failed calling webhook")), "the pod is not what the user wants")

	missing := &observation{now: noon, statefulSet: &appsv1.StatefulSet{UID: "set"}, missingSince: noon}
	s.Expect(upgraded.observe(t.Context(), &tracker{}, workspace, missing)).To(Succeed())
	s.Expect(decide(missing).status.Reason).To(Equal(autov1alpha1.WaitingForReplicasReason), "events only add a cause")
}

func TestStatefulSetThatIsRefusedLeavesTheRunningPodAlone(t *testing.T) {
	s, workspace, pod, _ := startReady(t)

	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) {
		spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Metadata: autov1alpha1.EmbeddedObjectMeta{Labels: map[string]string{"app": "not a label"}}}
	})
	s.Eventually(s.status(workspace)).Should(And(beUnready(autov1alpha1.ObjectRejectedReason), HaveField("Stalled", true),
		HaveField("Message", ContainSubstring("not a label"))))
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())

	s.change(workspace, func(spec *autov1alpha1.WorkspaceSpec) { spec.PodTemplate = nil })
	s.Eventually(s.status(workspace)).Should(beReady())
	s.Expect(s.beingDeleted(pod)()).To(BeFalse())
}
