package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestWorkspaceThatIsDeletedDuringTheDestroyIsMadeAgain(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-under")
	p.deployed(destroyed)
	release := p.hold()
	p.Delete()
	p.awaitRuns("destroy", 1)
	p.deleteWorkspace()
	p.awaitRuns("destroy", 2)
	release()
	p.awaitDestroyed()
}

func TestUpdateByHandIsNotEndedByTheDeletionOfTheStack(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	t.Parallel()
	for name, destroys := range map[string]bool{"deleted-by-hand": true, "deleted-by-hand-kept": false} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, name)
			p.deployed(func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = destroys })
			release := p.hold()
			byHand := p.handmade(autov1alpha1.UpdateTypeUp)
			p.awaitHeld()
			p.awaitUpdate(byHand, (*autov1alpha1.Update).HasStarted)
			p.Delete()
			waiting := p.Await(func(s *pulumiv1.Stack) bool {
				message := statuscheck.Message(s)
				return !s.DeletionTimestamp.IsZero() && (strings.Contains(message, `update "up"`) || strings.Contains(message, "the agent is busy"))
			})
			if !destroys {
				p.Expect(notReady(pulumiv1.WorkspaceInUseReason)(waiting)).To(BeTrue(), fmt.Sprint(waiting.Status.Conditions))
			}
			release()
			p.AwaitGone()
			p.awaitSuccess(byHand)
			p.Expect(p.resources() == 0).To(Equal(destroys))
		})
	}
}

func TestStackIsDestroyedThoughItsWorkspaceIsGone(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-workspaceless")
	p.deployed(destroyed)
	p.deleteWorkspace()
	p.Delete()
	p.awaitDestroyed()
}

func TestPreviewStackDestroysWhatItDeployedBefore(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-previewing")
	p.deployed(destroyed)
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Preview = true })
	p.Await(func(s *pulumiv1.Stack) bool {
		return ready("")(s) && s.Status.LastUpdate.Type == autov1alpha1.UpdateTypePreview
	})
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	p.Delete()
	p.awaitDestroyed()
}

func TestDeletedStackWaitsForNoDependency(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-dependent")
	p.deployed(destroyed)
	p.Change(func(s *pulumiv1.Stack) {
		needs("nobody")(s)
		s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: "nobody"}}
	})
	p.Await(notReady(pulumiv1.PrerequisiteNotSatisfiedReason))
	p.Delete()
	p.awaitDestroyed()
}

func TestDestroyGoesOnWhenTheBackendIsBack(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-backendless")
	backend := filepath.Join(p.TempDir(), "state")
	p.Expect(os.Mkdir(backend, 0o700)).To(Succeed())
	p.deployed(destroyed, retriedSoon, func(s *pulumiv1.Stack) { s.Spec.Backend = "file://" + backend })
	state := filepath.Join(backend, ".pulumi", "stacks", p.Name, "dev.json")
	p.Expect(state).To(BeAnExistingFile())

	p.Expect(os.Rename(backend, backend+".away")).To(Succeed())
	p.Expect(os.WriteFile(backend, nil, 0o600)).To(Succeed())
	p.Delete()
	failed := p.Await(says(pulumiv1.UpdateFailedReason))
	p.Expect(failed.Status.LastUpdate.Failures).To(BeNumerically(">=", 3))
	p.Expect(failed.Finalizers).To(ContainElement(pulumiv1.Finalizer))

	p.Expect(os.Remove(backend)).To(Succeed())
	p.Expect(os.Rename(backend+".away", backend)).To(Succeed())
	p.AwaitGone()
	content, err := os.ReadFile(state)
	p.Succeed(err)
	p.Expect(string(content)).NotTo(ContainSubstring(`"urn"`), "nothing is left in the state")
}
