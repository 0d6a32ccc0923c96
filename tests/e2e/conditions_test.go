package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// The operation begins, waits for a server of packages that does not answer yet, and succeeds.
func TestConditionsOfEveryKindFromTheBeginningToTheEnd(t *testing.T) {
	t.Parallel()
	p := &patient{T: t, WithT: NewWithT(t), name: "conditions", dir: t.TempDir(), server: newServer(t)}
	p.server.status.Store(withoutAnswer)
	p.artifact = artifacts.put("v1", packed(requiring(p)))
	p.Expect(start(t.Context(), p.name, p.artifact)).To(Succeed())
	stack := await(t.Context(), p.WithT, p.name, func(s *pulumiv1.Stack) bool {
		return conditions.GetReason(s, meta.ReadyCondition) == pulumiv1.NotReadyInProgressReason && s.Status.CurrentUpdate != nil &&
			p.reasonOf(s.Status.CurrentUpdate.Name, autov1alpha1.UpdateProgressing) == autov1alpha1.UpdateProgressingReason
	})
	p.Expect(conditions.IsUnknown(stack, meta.ReadyCondition)).To(BeTrue())
	p.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.StackProcessingReason))
	update := stack.Status.CurrentUpdate.Name
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.UpdateProgressingReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateComplete)).To(Equal(autov1alpha1.UpdateProgressingReason))

	p.server.status.Store(http.StatusOK)
	stack = await(t.Context(), p.WithT, p.name, ready(p.artifact.Digest))
	p.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.ProcessingCompletedReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateProgressing)).To(Equal(autov1alpha1.UpdateCompleteReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.UpdateSucceededReason))
	p.Expect(p.reasonOf(update, autov1alpha1.UpdateComplete)).To(Equal(autov1alpha1.UpdateUpdatedReason))
	workspace := &autov1alpha1.Workspace{}
	p.Expect(system.Client.Get(t.Context(), keyOf(p.name), workspace)).To(Succeed())
	p.Expect(conditions.GetReason(workspace, autov1alpha1.WorkspaceReady)).To(Equal(autov1alpha1.SucceededReason))
}

// reasonOf is that of a condition of the Update.
func (p *patient) reasonOf(update, condition string) string {
	found := &autov1alpha1.Update{}
	if err := system.Client.Get(p.Context(), keyIn(p.name, update), found); err != nil {
		return ""
	}
	return conditions.GetReason(found, condition)
}

func TestCommitWithPointersToLFSIsNotRun(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "lfs-pointers"
	program := yamlProgram(name, "outputs:", "  x: 1")
	program[".gitattributes"] = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
	program["large.bin"] = "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 1048576\n"
	repository, _, err := system.Git.Create(name, program)
	g.Expect(err).NotTo(HaveOccurred())
	startInNamespace(t, g, name, gitStack(name, repository))
	stack := await(t.Context(), g, name, notReady(pulumiv1.LFSPointersReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("large.bin"))
	g.Expect(updates(t.Context(), g, name)).To(BeEmpty())
	second, err := repository.Commit(gitserver.Files{"large.bin": "the file itself", ".gitattributes": "\n"})
	g.Expect(err).NotTo(HaveOccurred())
	request(t, g, name)
	await(t.Context(), g, name, ready(second))
}

func TestOutputsOfTheNextUpdateAreStoredThoughSomebodyHadTakenTheNameOfTheFirstSecret(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "outputs-occupied"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.EnvRefs["LATER"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "later", Key: "key"}}
	})).To(Succeed())
	stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
		return notReady(pulumiv1.SecretNotFoundReason)(s) && s.Status.CurrentUpdate != nil
	})
	occupier := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: stack.Status.CurrentUpdate.Name + autov1alpha1.OutputsSecretSuffix},
		StringData: map[string]string{"x": "foreign"},
	}
	g.Expect(system.Client.Create(t.Context(), occupier)).To(Succeed())
	later := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "later"}, StringData: map[string]string{"key": "value"}}
	g.Expect(system.Client.Create(t.Context(), later)).To(Succeed())
	stack = await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(stack.Status.Outputs).To(BeEmpty(), "what is in that Secret is of somebody else")
	g.Eventually(eventsOf).WithArguments(t.Context(), g, name, "OutputsNotStored").WithTimeout(patience).Should(
		ContainElement(ContainSubstring("exists and does not belong to this update")))

	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	stack = await(t.Context(), g, name, ready(next.Digest))
	g.Expect(string(outputsSecret(t, g, stack).Data["x"])).To(Equal("2"))
	g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(occupier), occupier)).To(Succeed())
	g.Expect(string(occupier.Data["x"])).To(Equal("foreign"))
}
