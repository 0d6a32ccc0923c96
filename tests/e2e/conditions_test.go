package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// The operation begins, waits for a server of packages that does not answer yet, and succeeds.
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

// reasonOf is that of a condition of the Update.
func (p *patient) reasonOf(update, condition string) string {
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
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.EnvRefs["LATER"] = stage.SecretRef("later", "key") })
	stack := p.Await(func(s *pulumiv1.Stack) bool {
		return notReady(pulumiv1.SecretNotFoundReason)(s) && s.Status.CurrentUpdate != nil
	})
	occupier := p.Secret(stack.Status.CurrentUpdate.Name+autov1alpha1.OutputsSecretSuffix, map[string]string{"x": "foreign"})
	p.Create(occupier, p.Secret("later", map[string]string{"key": "value"}))
	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.Outputs).To(BeEmpty(), "what is in that Secret is of somebody else")
	p.Eventually(p.events).WithArguments("OutputsNotStored").Should(
		ContainElement(ContainSubstring("exists and does not belong to this update")))

	next := p.publish(p.returning(2))
	stack = p.Await(ready(next.Digest))
	p.Expect(string(p.outputs(stack).Data["x"])).To(Equal("2"))
	p.Get(occupier.Name, occupier)
	p.Expect(string(occupier.Data["x"])).To(Equal("foreign"))
}
