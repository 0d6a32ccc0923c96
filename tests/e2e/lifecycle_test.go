package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestDeletedStackDestroysItsResourcesFirst(t *testing.T) {
	p := begin(t, "destroyed")
	p.deployed(destroyed)
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	p.Delete()
	p.awaitDestroyed()
	p.awaitUpdates(0)
}

func TestDeletedStackDestroysItsResourcesThoughItsSourceIsGone(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "sourceless")
	_, artifact := p.deployed(destroyed)
	artifacts.Replace(artifact.Path, nil)
	p.Expect(system.Client.Delete(p.Context(), &sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)})).To(Succeed())
	p.Await(notReady(pulumiv1.SourceNotFoundReason))
	p.Delete()
	p.awaitDestroyed()
}

func TestDeletedStackLeavesItsResourcesUnlessAskedToDestroyThem(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "left")
	p.deployed()
	p.Delete()
	p.awaitReleased()
}

func TestRequestsRunAnUpdateEach(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "requested")
	stack, _ := p.deployed()
	for _, annotation := range []string{meta.ReconcileRequestAnnotation, pulumiv1.ReconcileRequestAnnotation} {
		p.Change(scene.Annotate(annotation, "once"))
		stack = p.awaitNext(stack)
	}
	p.Expect(stack.Status.LastHandledReconcileAt).To(Equal("once"))
	p.Expect(stack.Status.ObservedReconcileRequest).To(Equal("once"))
	p.Expect(stack.Status.LastUpdate.ReconcileRequest).To(Equal("once"))
	p.Expect(p.Updates()).To(HaveLen(3))
}

func TestSuspendedStackCatchesUpWhenItIsResumed(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "suspended")
	_, first := p.deployed()
	p.Change(suspended)
	next := p.publish(p.returning(2))
	p.Change(scene.Annotate(meta.ReconcileRequestAnnotation, "while suspended"))
	stack := p.Await(func(s *pulumiv1.Stack) bool { return s.Status.LastHandledReconcileAt == "while suspended" })
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(first.Digest))

	p.Change(resumed)
	p.Await(ready(next.Digest))
}

func TestPreviewStackDeploysNothing(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "previewed")
	stack, _ := p.deployed(destroyed, func(s *pulumiv1.Stack) { s.Spec.Preview = true })
	p.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypePreview))
	p.Expect(stack.Status.Deployed).To(BeFalse())
	p.Expect(p.resources()).To(BeZero())
	p.Delete()
	p.AwaitGone()
}

func TestOptionsReachPulumi(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "optioned")
	const urn = "urn:pulumi:dev::optioned::pulumi:pulumi:Stack::optioned-dev"
	p.deployed(func(s *pulumiv1.Stack) {
		s.Spec.Refresh, s.Spec.Targets, s.Spec.TargetDependents = true, []string{urn}, true
	})
	p.Expect(p.calls(p.Name)).To(ContainElement(And(
		ContainSubstring(" up "), ContainSubstring("--refresh"), ContainSubstring(urn), ContainSubstring("--target-dependents"))))
}

func TestHistoryIsLimited(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "limited")
	stack, _ := p.deployed(func(s *pulumiv1.Stack) { s.Spec.UpdateHistoryLimit = new(int32(2)) })
	for _, token := range []string{"a", "b", "c"} {
		p.Change(scene.Annotate(pulumiv1.ReconcileRequestAnnotation, token))
		stack = p.awaitNext(stack)
	}
	p.awaitUpdates(2)
	p.Expect(stack.Status.History).To(HaveLen(1))
	p.Expect(stack.Status.History[0].TotalReconciliations).To(BeEquivalentTo(4))
}

func TestResyncRunsWhenItIsDueAndKeepsTheStackReady(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "resynced")
	stack, _ := p.deployed(func(s *pulumiv1.Stack) { s.Spec.ContinueResyncOnCommitMatch, s.Spec.ResyncFrequencySeconds = true, 60 })
	since := readySince(stack)
	before := stack.DeepCopy()
	stack.Status.LastUpdate.LastResyncTime = metav1.NewTime(time.Now().Add(-2 * time.Minute))
	p.Expect(system.Client.Status().Patch(p.Context(), stack, client.MergeFrom(before))).To(Succeed())
	// An annotation that means nothing here makes the controller look.
	p.Change(scene.Annotate(pulumiv1.OrphanAnnotation, "false"))
	stack = p.awaitNext(stack)
	p.Expect(readySince(stack)).To(Equal(since))
}

func readySince(stack *pulumiv1.Stack) metav1.Time {
	return apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition).LastTransitionTime
}

func TestStackWaitsForItsPrerequisites(t *testing.T) {
	p := begin(t, "dependent")
	artifact := p.put(p.returning(1))
	p.start(artifact, needs("base"), func(s *pulumiv1.Stack) { s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: "base"}} })
	stack := p.Await(notReady(pulumiv1.PrerequisiteNotSatisfiedReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("base does not exist"))

	p.layer("base")
	stack = p.Await(ready(artifact.Digest))
	base := &pulumiv1.Stack{}
	p.Get("base", base)
	p.Expect(stack.Status.LastUpdate.LastResyncTime.Time).To(BeTemporally(">=", base.Status.LastUpdate.LastResyncTime.Time))
}
