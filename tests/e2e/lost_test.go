package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// lose takes the state of the stack out of the backend, as if it were another backend, and returns what brings it back.
func (p *play) lose() (bringBack func()) {
	p.Helper()
	state := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "stacks", p.Name)
	p.Expect(os.Rename(state, state+".away")).To(Succeed())
	return func() {
		p.Expect(os.RemoveAll(state)).To(Succeed())
		p.Expect(os.Rename(state+".away", state)).To(Succeed())
	}
}

func retriedSoon(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Second} }

// allowed lets a Stack create what is missing.
var allowed = scene.Annotate(pulumiv1.CreateMissingStackAnnotation, "true")

func TestLostStackIsNotCreatedAgainAndHealsWhenItIsBack(t *testing.T) {
	p := begin(t, "lost")
	stack, _ := p.deployed(retriedSoon)
	p.Expect(stack.Status.DeployedStack).To(Equal("dev"))
	bringBack := p.lose()
	next := p.publish(p.returning(2))
	lost := p.Await(notReady(pulumiv1.StackLostReason))
	p.Expect(statuscheck.Message(lost)).To(And(ContainSubstring("was deployed before"), ContainSubstring(pulumiv1.CreateMissingStackAnnotation+"=true")))
	p.Expect(lost.Status.LastUpdate.Reason).To(Equal(autov1alpha1.StackLostReason))
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse())
	bringBack()
	p.Await(ready(next.Digest))
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

func TestLostStackIsCreatedAgainWhenSomebodyAllowsIt(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "lost-for-good")
	p.deployed(retriedLate)
	p.lose()
	next := p.publish(p.returning(2))
	p.Await(notReady(pulumiv1.StackLostReason))
	p.Change(allowed)
	p.Await(ready(next.Digest))
	p.Expect(p.HasState(p.Name, "dev")).To(BeTrue())
}

func TestStackOfAProjectWithAnotherNameIsNotCreatedUntilSomebodyAllowsIt(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "lost-project")
	const renamed = "lost-project-renamed"
	p.deployed()
	next := p.publish(scene.Returning(renamed, 2))
	lost := p.Await(notReady(pulumiv1.StackLostReason))
	p.Expect(statuscheck.Message(lost)).To(ContainSubstring("whether the project has the name that it had"))
	p.Expect(p.HasState(renamed, "dev")).To(BeFalse())
	p.Change(allowed)
	p.Await(ready(next.Digest))
	p.Expect(p.HasState(renamed, "dev")).To(BeTrue())
}

func TestStackWithAnotherNameIsCreated(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "renamed-stack")
	p.deployed()
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Stack = "prod" })
	p.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.DeployedStack == "prod" && s.Status.LastUpdate.Generation == s.Generation
	})
}

func TestDestroyOfALostStackIsNoProof(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "lost-deleted")
	p.deployed(destroyed, retriedSoon)
	bringBack := p.lose()
	p.Delete()
	p.Await(says(pulumiv1.StackLostReason))
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse())
	bringBack()
	p.awaitDestroyed()
}
