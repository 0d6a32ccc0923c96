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
)

// lose takes the state of a stack out of the backend, as if it were another backend, and returns what brings it back.
func lose(g *WithT, project string) (bringBack func()) {
	state := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "stacks", project)
	g.Expect(os.Rename(state, state+".away")).To(Succeed())
	return func() {
		g.Expect(os.RemoveAll(state)).To(Succeed())
		g.Expect(os.Rename(state+".away", state)).To(Succeed())
	}
}

// hasStack tells whether the backend has the stack "dev" of the project.
func hasStack(project string) bool {
	_, err := os.Stat(filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "stacks", project, "dev.json"))
	return err == nil
}

func retriedSoon(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Second} }

func TestLostStackIsNotCreatedAgainAndHealsWhenItIsBack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "lost"
	stack, _ := deployed(t, g, name, retriedSoon)
	g.Expect(stack.Status.DeployedStack).To(Equal("dev"))
	bringBack := lose(g, name)
	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	lost := await(t.Context(), g, name, notReady(pulumiv1.StackLostReason))
	g.Expect(readyMessage(lost)).To(And(ContainSubstring("was deployed before"), ContainSubstring(pulumiv1.CreateMissingStackAnnotation+"=true")))
	g.Expect(lost.Status.LastUpdate.Reason).To(Equal(autov1alpha1.StackLostReason))
	g.Expect(hasStack(name)).To(BeFalse())
	bringBack()
	await(t.Context(), g, name, ready(next.Digest))
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
}

func TestLostStackIsCreatedAgainWhenSomebodyAllowsIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "lost-for-good"
	deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour} })
	lose(g, name)
	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.StackLostReason))
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.CreateMissingStackAnnotation, "true")
	})
	await(t.Context(), g, name, ready(next.Digest))
	g.Expect(hasStack(name)).To(BeTrue())
}

func TestStackOfAProjectWithAnotherNameIsNotCreatedUntilSomebodyAllowsIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name, renamed = "lost-project", "lost-project-renamed"
	deployed(t, g, name)
	next := artifacts.put("v2", packed(yamlProgram(renamed, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	lost := await(t.Context(), g, name, notReady(pulumiv1.StackLostReason))
	g.Expect(readyMessage(lost)).To(ContainSubstring("whether the project has the name that it had"))
	g.Expect(hasStack(renamed)).To(BeFalse())
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.CreateMissingStackAnnotation, "true")
	})
	await(t.Context(), g, name, ready(next.Digest))
	g.Expect(hasStack(renamed)).To(BeTrue())
}

func TestStackWithAnotherNameIsCreated(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "renamed-stack"
	deployed(t, g, name)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Stack = "prod" })
	await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
		return s.Status.DeployedStack == "prod" && s.Status.LastUpdate.Generation == s.Generation
	})
}

func TestDestroyOfALostStackIsNoProof(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "lost-deleted"
	stack, _ := deployed(t, g, name, destroyed, retriedSoon)
	bringBack := lose(g, name)
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	await(t.Context(), g, name, says(pulumiv1.StackLostReason))
	g.Expect(hasStack(name)).To(BeFalse())
	bringBack()
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}
