package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// deleteNamespace does "kubectl delete namespace": everything in it is deleted, in no order, and nothing can be created in it.
func (p *play) deleteNamespace() {
	p.Helper()
	p.Expect(system.Client.Delete(p.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Name}})).To(Succeed())
}

// awaitNamespaceGone waits until the namespace, and thus all that was in it, is gone.
func (p *play) awaitNamespaceGone() {
	p.Helper()
	p.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(p.Context(), client.ObjectKey{Name: p.Name}, &corev1.Namespace{}))
	}).Should(BeTrue())
}

// stuck is a Stack whose namespace goes before it was destroyed.
func (p *play) stuck() *pulumiv1.Stack {
	p.Helper()
	stack := p.Await(says(pulumiv1.NamespaceTerminatingReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring("the namespace is being deleted"), ContainSubstring(`stack "dev"`)))
	p.Expect(stack.Finalizers).To(ContainElement(pulumiv1.Finalizer))
	return stack
}

func TestStackWhoseNamespaceGoesIsKeptAndCanBeDestroyedFromAnother(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace")
	_, artifact := p.deployed(destroyed)
	p.deleteNamespace()
	p.stuck()
	p.AwaitAbsent(stage.PassphraseSecret, &corev1.Secret{})
	p.AwaitAbsent(p.Name, &sourcev1.ExternalArtifact{})
	// It does not try again and again.
	stack := p.stuck()
	version := stack.ResourceVersion
	p.Consistently(func() string {
		p.Get(p.Name, stack)
		return stack.ResourceVersion
	}).WithTimeout(3 * time.Second).Should(Equal(version))

	// The same Stack in another namespace takes over what is deployed, and destroys it.
	rescue := p.beside("deleted-namespace-rescue")
	rescue.start(artifact, func(s *pulumiv1.Stack) {
		s.Spec = *stack.Spec.DeepCopy()
		s.Spec.FluxSource.SourceRef.Name = s.Name
	})
	rescue.Await(ready(artifact.Digest))
	rescue.Delete()
	rescue.AwaitGone()
	p.Expect(p.resources()).To(BeZero())

	p.Change(orphan)
	p.awaitNamespaceGone()
}

func TestStackWhoseNamespaceGoesWithNothingToDestroyGoesWithIt(t *testing.T) {
	p := begin(t, "deleted-namespace-kept")
	p.deployed()
	p.deleteNamespace()
	p.awaitNamespaceGone()
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

func TestStackWhoseNamespaceGoesBeforeItSucceededSaysWhatToDo(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace-failed")
	p.failedOnce()
	p.Change(retriedLate)
	p.deleteNamespace()
	p.Await(func(s *pulumiv1.Stack) bool {
		return says(pulumiv1.NamespaceTerminatingReason)(s) || says(pulumiv1.SourceNotFoundReason)(s)
	})
	p.Change(orphan)
	p.awaitNamespaceGone()
}

func TestDestroyThatRunsWhenItsNamespaceGoesIsEndedAndTold(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace-running")
	p.deployed(destroyed)
	release := p.hold()
	p.Delete()
	p.awaitRuns("destroy", 1)
	p.deleteNamespace()
	p.stuck()
	release()
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	p.Change(orphan)
	p.awaitNamespaceGone()
}

func TestUpdateThatRunsWhenItsNamespaceGoesIsEnded(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace-update")
	p.deployed()
	p.hold()
	p.publish(p.returning(2))
	p.awaitHeld()
	p.deleteNamespace()
	p.awaitNamespaceGone()
}
