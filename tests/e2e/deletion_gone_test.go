package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// deleteWorkspace deletes the Workspace as somebody does by hand, and waits until it is gone, or another one is in its place.
func deleteWorkspace(t *testing.T, g *WithT, name string) {
	t.Helper()
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	first := workspace.UID
	g.Expect(system.Client.Delete(t.Context(), workspace)).To(Succeed())
	g.Eventually(func() bool {
		err := system.Client.Get(t.Context(), keyOf(name), workspace)
		return apierrors.IsNotFound(err) || workspace.UID != first
	}).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
}

// TestWorkspaceThatIsDeletedDuringTheDestroyIsMadeAgain runs alone: it holds pulumi.
func TestWorkspaceThatIsDeletedDuringTheDestroyIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	const name = "deleted-under"
	stack, _ := deployed(t, g, name, destroyed)
	release := pulumi.hold(g)
	defer release()
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitRuns(g, name, "destroy", 1)
	deleteWorkspace(t, g, name)
	awaitRuns(g, name, "destroy", 2)
	release()
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

// TestUpdateByHandIsNotEndedByTheDeletionOfTheStack runs alone: it holds pulumi.
func TestUpdateByHandIsNotEndedByTheDeletionOfTheStack(t *testing.T) {
	for name, destroys := range map[string]bool{"deleted-by-hand": true, "deleted-by-hand-kept": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = destroys })
			release := pulumi.hold(g)
			defer release()
			before := runsOf(g, name, "up")
			byHand := handmade(name, autov1alpha1.UpdateTypeUp)
			g.Expect(system.Client.Create(t.Context(), byHand)).To(Succeed())
			awaitRuns(g, name, "up", before+1)
			g.Eventually(func(g Gomega) {
				g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(byHand), byHand)).To(Succeed())
				g.Expect(byHand.HasStarted()).To(BeTrue())
			}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
			g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
			waiting := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
				return !s.DeletionTimestamp.IsZero() && (strings.Contains(readyMessage(s), `update "up"`) || strings.Contains(readyMessage(s), "the agent is busy"))
			})
			if !destroys {
				g.Expect(notReady(pulumiv1.WorkspaceInUseReason)(waiting)).To(BeTrue(), fmt.Sprint(waiting.Status.Conditions))
			}
			release()
			awaitGone(t.Context(), g, name)
			g.Expect(awaitEnd(t.Context(), g, byHand).HasFailed()).To(BeFalse(), byHand.Status.Message)
			g.Expect(resources(g, name) == 0).To(Equal(destroys))
		})
	}
}

func TestStackIsDestroyedThoughItsWorkspaceIsGone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-workspaceless"
	stack, _ := deployed(t, g, name, destroyed)
	deleteWorkspace(t, g, name)
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestPreviewStackDestroysWhatItDeployedBefore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-previewing"
	stack, _ := deployed(t, g, name, destroyed)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Preview = true })
	await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
		return ready("")(s) && s.Status.LastUpdate.Type == autov1alpha1.UpdateTypePreview
	})
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestDeletedStackWaitsForNoDependency(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-dependent"
	stack, _ := deployed(t, g, name, destroyed)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		needs("nobody")(s)
		s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: "nobody"}}
	})
	await(t.Context(), g, name, notReady(pulumiv1.PrerequisiteNotSatisfiedReason))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestDestroyGoesOnWhenTheBackendIsBack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-backendless"
	backend := filepath.Join(t.TempDir(), "state")
	g.Expect(os.Mkdir(backend, 0o700)).To(Succeed())
	stack, _ := deployed(t, g, name, destroyed, retriedSoon, func(s *pulumiv1.Stack) { s.Spec.Backend = "file://" + backend })
	state := filepath.Join(backend, ".pulumi", "stacks", name, "dev.json")
	g.Expect(state).To(BeAnExistingFile())

	g.Expect(os.Rename(backend, backend+".away")).To(Succeed())
	g.Expect(os.WriteFile(backend, nil, 0o600)).To(Succeed())
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	failed := await(t.Context(), g, name, says(pulumiv1.UpdateFailedReason))
	g.Expect(failed.Status.LastUpdate.Failures).To(BeNumerically(">=", 3))
	g.Expect(failed.Finalizers).To(ContainElement(pulumiv1.Finalizer))

	g.Expect(os.Remove(backend)).To(Succeed())
	g.Expect(os.Rename(backend+".away", backend)).To(Succeed())
	awaitGone(t.Context(), g, name)
	content, err := os.ReadFile(state)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).NotTo(ContainSubstring(`"urn"`), "nothing is left in the state")
}
