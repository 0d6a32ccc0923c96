package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// The tests of this file run alone, before the parallel ones: they stop the controller.

// forgetUpdates removes the Updates of the namespace, as time does, and their finalizers.
func (p *play) forgetUpdates() {
	p.Helper()
	for _, update := range p.Updates() {
		before := update.DeepCopy()
		update.Finalizers = nil
		p.Expect(client.IgnoreNotFound(system.Client.Patch(p.Context(), &update, client.MergeFrom(before)))).To(Succeed())
		p.Expect(client.IgnoreNotFound(system.Client.Delete(p.Context(), &update))).To(Succeed())
	}
	p.Expect(p.Updates()).To(BeEmpty())
}

func TestStackWhoseStatusWasClearedIsNotLetGoWithoutADestroy(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := alone(t, "deleted-statusless")
	stack, _ := p.deployed(destroyed)
	p.stopController()
	p.forgetUpdates()
	p.Get(p.Name, stack)
	p.Expect(stack.Annotations).To(HaveKeyWithValue(pulumiv1.DeployedStackAnnotation, "dev"))
	stack.Status = pulumiv1.StackStatus{}
	p.Expect(system.Client.Status().Update(p.Context(), stack)).To(Succeed())
	p.Delete()
	p.startController()
	p.awaitDestroyed()
}

// restored replaces the Stack by what a backup without statuses and finalizers has of it, while the controller is stopped.
func (p *play) restored(changes ...func(*pulumiv1.Stack)) {
	p.Helper()
	backup := &pulumiv1.Stack{}
	p.Get(p.Name, backup)
	p.Change(func(s *pulumiv1.Stack) { s.Finalizers = nil })
	p.Delete()
	p.AwaitGone()
	p.forgetUpdates()
	p.awaitNoWorkspace()
	backup.ObjectMeta = metav1.ObjectMeta{Namespace: p.Name, Name: p.Name, Labels: backup.Labels, Annotations: backup.Annotations}
	backup.Status = pulumiv1.StackStatus{}
	for _, edit := range changes {
		edit(backup)
	}
	p.Create(backup)
}

func TestStackThatWasRestoredWithoutStatusIsDestroyedWhenItIsDeleted(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := alone(t, "deleted-restored")
	p.deployed(destroyed)
	p.stopController()
	p.restored(suspended)
	p.startController()
	p.awaitFinalizer(p.Name)
	p.Delete()
	p.Await(says(pulumiv1.SuspendedReason))
	p.Change(resumed)
	p.awaitDestroyed()
}

func TestStackThatWasRestoredWithoutItsBackendIsNotCreatedAgain(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := alone(t, "restored-lost")
	_, artifact := p.deployed(destroyed, retriedSoon)
	p.stopController()
	p.restored()
	bringBack := p.lose()
	p.startController()
	p.Await(notReady(pulumiv1.StackLostReason))
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse())
	bringBack()
	p.Await(ready(artifact.Digest))
}

func TestStackThatNeverDeployedAnythingGoesThoughItsStackExists(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := begin(t, "deleted-new")
	first, _ := p.deployed()
	// Another Stack of the same stack that never ran: what it did not make is not its to destroy.
	p.layer("second", destroyed, suspended, func(s *pulumiv1.Stack) { s.Spec.Stack = first.Spec.Stack })
	p.awaitFinalizer("second")
	p.deleteLayers("second")
	p.awaitLayers(p.Name)
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}
