package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
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

func TestRequestsRunAnUpdateEach(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "requested")
	stack, _ := p.deployed()
	for _, annotation := range []string{meta.ReconcileRequestAnnotation, pulumiv1.ReconcileRequestAnnotation} {
		p.Change(systemtest.Annotate(annotation, "once"))
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
	p.Change(systemtest.Annotate(meta.ReconcileRequestAnnotation, "while suspended"))
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

func TestHistoryIsLimited(t *testing.T) {
	suite.Long(t, "further options of a Stack")
	p := begin(t, "limited")
	stack, _ := p.deployed(func(s *pulumiv1.Stack) { s.Spec.UpdateHistoryLimit = new(int32(2)) })
	for _, token := range []string{"a", "b", "c"} {
		p.Change(systemtest.Annotate(pulumiv1.ReconcileRequestAnnotation, token))
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
	// This annotation has no effect here, but its change makes the controller reconcile the Stack.
	p.Change(systemtest.Annotate(pulumiv1.OrphanAnnotation, "false"))
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

// The operation begins, waits for a package server that does not respond yet, and succeeds.
func TestConditionsOfEveryKindFromTheBeginningToTheEnd(t *testing.T) {
	suite.Long(t, "each condition in its order")
	p := newPatient(t, "conditions")
	p.server.status.Store(withoutAnswer)
	p.artifact = p.put(requiring(p))
	p.start(p.artifact)
	stack := p.Await(func(s *pulumiv1.Stack) bool {
		return conditions.GetReason(s, meta.ReadyCondition) == pulumiv1.NotReadyInProgressReason && s.Status.CurrentUpdate != nil &&
			p.reasonOf(s.Status.CurrentUpdate.Name, autov1alpha1.UpdateProgressing) == autov1alpha1.UpdateProgressingReason
	})
	p.Expect(conditions.IsUnknown(stack, meta.ReadyCondition)).To(BeTrue())
	p.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.StackProcessingReason))
	update := stack.Status.CurrentUpdate.Name
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.UpdateProgressingReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateComplete)).To(Equal(autov1alpha1.UpdateProgressingReason))

	p.server.status.Store(http.StatusOK)
	stack = p.Await(ready(p.artifact.Digest))
	p.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.ProcessingCompletedReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateProgressing)).To(Equal(autov1alpha1.UpdateCompleteReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.UpdateSucceededReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateComplete)).To(Equal(autov1alpha1.UpdateUpdatedReason))
	p.Expect(conditions.GetReason(p.Workspace(), autov1alpha1.WorkspaceReady)).To(Equal(autov1alpha1.SucceededReason))
}

// reasonOf returns the reason of a condition of the Update.
func (p *recoveryFixture) reasonOf(update, condition string) string {
	found := &autov1alpha1.Update{}
	if err := system.Client.Get(p.Context(), p.Key(update), found); err != nil {
		return ""
	}
	return conditions.GetReason(found, condition)
}

func TestCommitWithPointersToLFSIsNotRun(t *testing.T) {
	suite.Long(t, "each condition in its order")
	p := begin(t, "lfs-pointers")
	program := p.returning(1)
	program[".gitattributes"] = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
	program["large.bin"] = "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 1048576\n"
	repository, _ := p.repository(program)
	p.enter(p.gitStack(repository.URL))
	stack := p.Await(notReady(pulumiv1.LFSPointersReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("large.bin"))
	p.Expect(p.Updates()).To(BeEmpty())
	second := p.commit(repository, gitserver.Files{"large.bin": "the file itself", ".gitattributes": "\n"})
	p.Request()
	p.Await(ready(second))
}

func TestOutputsOfTheNextUpdateAreStoredThoughSomebodyHadTakenTheNameOfTheFirstSecret(t *testing.T) {
	suite.Long(t, "each condition in its order")
	p := begin(t, "outputs-occupied")
	artifact := p.put(p.returning(1))
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.EnvRefs["LATER"] = localsystem.SecretRef("later", "key") })
	stack := p.Await(func(s *pulumiv1.Stack) bool {
		return notReady(pulumiv1.SecretNotFoundReason)(s) && s.Status.CurrentUpdate != nil
	})
	occupier := p.Secret(stack.Status.CurrentUpdate.Name+autov1alpha1.OutputsSecretSuffix, map[string]string{"x": "foreign"})
	p.Create(occupier, p.Secret("later", map[string]string{"key": "value"}))
	stack = p.Await(notReady(pulumiv1.OutputsNotWrittenReason))
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(artifact.Digest))
	p.Expect(stack.Status.Outputs).To(BeEmpty(), "what is in that Secret is of somebody else")
	p.Eventually(p.events).WithArguments("OutputsNotStored").Should(
		ContainElement(ContainSubstring("exists and does not belong to this update")))

	next := p.publish(p.returning(2))
	stack = p.Await(ready(next.Digest))
	p.Expect(string(p.outputs(stack).Data["x"])).To(Equal("2"))
	p.Get(occupier.Name, occupier)
	p.Expect(string(occupier.Data["x"])).To(Equal("foreign"))
}
