package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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
)

// deployed starts a Stack of a trivial program, changed as told, and waits until it is Ready.
func deployed(t *testing.T, g *WithT, name string, changes ...func(*pulumiv1.Stack)) (*pulumiv1.Stack, *meta.Artifact) {
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact, changes...)).To(Succeed())
	return await(t.Context(), g, name, ready(artifact.Digest)), artifact
}

// resources returns how many resources the backend has for the stack "dev" of the project.
func resources(g *WithT, project string) int {
	dir := strings.TrimPrefix(system.BackendURL, "file://")
	content, err := os.ReadFile(filepath.Join(dir, ".pulumi", "stacks", project, "dev.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var state struct {
		Checkpoint struct {
			Latest struct{ Resources []json.RawMessage }
		}
	}
	g.Expect(json.Unmarshal(content, &state)).To(Succeed())
	return len(state.Checkpoint.Latest.Resources)
}

func TestDeletedStackDestroysItsResourcesFirst(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "destroyed"
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true })
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
	g.Eventually(func() int { return len(updates(t.Context(), g, name)) }).WithTimeout(patience).Should(BeZero(), "its Updates go with it")
}

func TestDeletedStackDestroysItsResourcesThoughItsSourceIsGone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "sourceless"
	stack, artifact := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true })
	artifacts.remove(artifact)
	g.Expect(system.Client.Delete(t.Context(), &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}})).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.SourceNotFoundReason))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestDeletedStackLeavesItsResourcesUnlessAskedToDestroyThem(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stack, _ := deployed(t, g, "left")
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, "left")
	g.Expect(resources(g, "left")).To(BeNumerically(">", 0))
}

func TestRequestsRunAnUpdateEach(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "requested"
	stack, _ := deployed(t, g, name)
	for _, annotation := range []string{meta.ReconcileRequestAnnotation, pulumiv1.ReconcileRequestAnnotation} {
		previous := stack.Status.LastUpdate.Name
		change(t.Context(), g, name, func(s *pulumiv1.Stack) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, annotation, "once") })
		stack = await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != previous })
	}
	g.Expect(stack.Status.LastHandledReconcileAt).To(Equal("once"))
	g.Expect(stack.Status.ObservedReconcileRequest).To(Equal("once"))
	g.Expect(stack.Status.LastUpdate.ReconcileRequest).To(Equal("once"))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(3))
}

func TestSuspendedStackCatchesUpWhenItIsResumed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "suspended"
	_, first := deployed(t, g, name)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, meta.ReconcileRequestAnnotation, "while suspended")
	})
	stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return s.Status.LastHandledReconcileAt == "while suspended" })
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(first.Digest))

	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = false })
	await(t.Context(), g, name, ready(next.Digest))
}

func TestPreviewStackDeploysNothing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "previewed"
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.Preview = true; s.Spec.DestroyOnFinalize = true })
	g.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypePreview))
	g.Expect(stack.Status.Deployed).To(BeFalse())
	g.Expect(resources(g, name)).To(BeZero())
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
}

func TestOptionsReachPulumi(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	urn := "urn:pulumi:dev::optioned::pulumi:pulumi:Stack::optioned-dev"
	deployed(t, g, "optioned", func(s *pulumiv1.Stack) {
		s.Spec.Refresh = true
		s.Spec.Targets = []string{urn}
		s.Spec.TargetDependents = true
	})
	g.Expect(pulumi.calls(g)).To(ContainElement(And(
		ContainSubstring(" up "), ContainSubstring("--refresh"), ContainSubstring(urn), ContainSubstring("--target-dependents"))))
}

func TestHistoryIsLimited(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "limited"
	limit := int32(2)
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.UpdateHistoryLimit = &limit })
	for _, token := range []string{"a", "b", "c"} {
		previous := stack.Status.LastUpdate.Name
		change(t.Context(), g, name, func(s *pulumiv1.Stack) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, token)
		})
		stack = await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != previous })
	}
	g.Eventually(func() int { return len(updates(t.Context(), g, name)) }).WithTimeout(patience).WithPolling(pollInterval).Should(Equal(2))
	g.Expect(stack.Status.History).To(HaveLen(1))
	g.Expect(stack.Status.History[0].TotalReconciliations).To(BeEquivalentTo(4))
}

func TestResyncRunsWhenItIsDueAndKeepsTheStackReady(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "resynced"
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) {
		s.Spec.ContinueResyncOnCommitMatch = true
		s.Spec.ResyncFrequencySeconds = 60
	})
	since := readySince(stack)
	first := stack.Status.LastUpdate.Name
	before := stack.DeepCopy()
	stack.Status.LastUpdate.LastResyncTime = metav1.NewTime(time.Now().Add(-2 * time.Minute))
	g.Expect(system.Client.Status().Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
	// An annotation that means nothing here makes the controller look.
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.OrphanAnnotation, "false")
	})
	stack = await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != first })
	g.Expect(readySince(stack)).To(Equal(since))
}

func readySince(stack *pulumiv1.Stack) metav1.Time {
	return apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition).LastTransitionTime
}

func TestStackWaitsForItsPrerequisites(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "dependent"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: "base"}}
		s.Spec.DependsOn = []meta.DependencyReference{{Name: "base"}}
	})).To(Succeed())
	stack := await(t.Context(), g, name, notReady(pulumiv1.PrerequisiteNotSatisfiedReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("base does not exist"))

	base := artifactStack(name)
	base.Name, base.Spec.Stack = "base", "base"
	g.Expect(system.Client.Create(t.Context(), base)).To(Succeed())
	stack = await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(base), base)).To(Succeed())
	g.Expect(stack.Status.LastUpdate.LastResyncTime.Time).To(BeTemporally(">=", base.Status.LastUpdate.LastResyncTime.Time))
}
