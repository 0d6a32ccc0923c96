package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// withFinalizer is how the Stack controller creates Updates.
func withFinalizer(update *autov1alpha1.Update) { update.Finalizers = []string{pulumiv1.Finalizer} }

// gone returns a function for Eventually that reports whether the Update no longer exists.
func (s *fixture) gone(update *autov1alpha1.Update) func() bool {
	return func() bool {
		_, err := s.current(update)()
		return apierrors.IsNotFound(err)
	}
}

func TestDeletionCancelsTheOperation(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.Eventually(s.gone(update)).Should(BeTrue())
	s.Eventually(s.events(update)).Should(ConsistOf("Warning UpdateFailed: cancelled"))
	s.Expect(s.agents.script.requests()).To(HaveLen(1))

	// The workspace is free again.
	s.agents.script.blocks()()
	s.Expect(s.finished(s.newUpdate("next"))).To(haveSucceeded())
}

func TestDeletionWhileNobodyWatchedCancelsTheOperation(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	stop := s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	stop()
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.startController()
	s.Eventually(s.gone(update)).Should(BeTrue())
	s.Expect(s.agents.count("CancelOperation")).To(BeNumerically(">", 0))
}

func TestDeletionOfAWaitingUpdateNeedsNoAgent(t *testing.T) {
	s := newFixture(t)
	s.startController()
	update := s.newUpdate("up", withFinalizer)
	s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotFoundReason, ""))
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.Eventually(s.gone(update)).Should(BeTrue())

	workspace := s.newWorkspace("app")
	s.setReady(workspace, false, "no agent")
	waiting := s.newUpdate("waiting", withFinalizer)
	s.Eventually(s.current(waiting)).Should(waitFor(autov1alpha1.UpdateWorkspaceNotReadyReason, ""))
	s.Expect(s.client.Delete(t.Context(), waiting)).To(Succeed())
	s.Eventually(s.gone(waiting)).Should(BeTrue())
	s.Expect(s.agents.script.requests()).To(BeEmpty())

	// There is no event about a failure. The event about an Update that ran comes after any events about the deleted ones would have come.
	s.setReady(workspace, true, "")
	s.agents.start(s.key("app"))
	ran := s.newUpdate("ran")
	s.finished(ran)
	s.Eventually(s.events(ran)).ShouldNot(BeEmpty())
	s.Expect(s.events(update)()).To(BeEmpty())
	s.Expect(s.events(waiting)()).To(BeEmpty())
}

func TestDeletionDoesNotWaitForAWorkspaceThatIsGone(t *testing.T) {
	s := newFixture(t)
	workspace := s.newReadyWorkspace("app")
	s.agents.script.blocks()
	stop := s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	stop()
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), workspace)).To(Succeed())
	s.startController()
	s.Eventually(s.gone(update)).Should(BeTrue())
}

func TestDeletionOfACompleteUpdateNeedsNoAgent(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.startController()
	update := s.newUpdate("up")
	s.finished(update)
	s.agents.stop(s.key("app"))
	s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
	s.Eventually(s.gone(update)).Should(BeTrue())
}

func TestAnUpdateThatDidNotRunStaysUntilItsStackHasSeenThat(t *testing.T) {
	for name, test := range map[string]struct {
		version string // that an agent has reported
		named   string // by the status of the Stack
		stays   bool
	}{
		"it did not run": {"", "this", true},
		"it did not run, and its Stack has yet to see":               {"", "", true},
		"it did not run, and its Stack still sees the one before it": {"", "before", true},
		"it may have run": {"v3.276.0", "this", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.startController()
			workspace := s.newWorkspace("app")
			before := workspace.DeepCopy()
			workspace.Status.PulumiVersion = test.version
			conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, autov1alpha1.ImagePullFailedReason, "no such image")
			s.Expect(s.client.Status().Patch(t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())
			stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev"}}
			s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
			update := s.newUpdate("up", withFinalizer, func(update *autov1alpha1.Update) {
				update.OwnerReferences = []metav1.OwnerReference{
					*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
					{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID},
				}
			})
			show := func(uid types.UID, withdrawn bool) {
				before := stack.DeepCopy()
				stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: update.Name, UID: uid, Withdrawn: withdrawn}
				s.Expect(s.client.Status().Patch(t.Context(), stack, ctrlclient.MergeFrom(before))).To(Succeed())
			}
			switch test.named {
			case "this":
				show(update.UID, false)
			case "before":
				show("before", true)
			}
			s.Expect(s.client.Delete(t.Context(), update)).To(Succeed())
			if test.stays {
				s.Eventually(s.current(update)).Should(And(HaveField("IsComplete()", BeTrue()), HaveField("Status.NotRun", BeTrue())))
				s.Consistently(s.gone(update), awaitedInterval+time.Second).Should(BeFalse())
				show(update.UID, true)
			}
			s.Eventually(s.gone(update)).Should(BeTrue())
		})
	}
}
