package e2e_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The tests of this file run alone, before the parallel ones: they hold pulumi, or end the controller.

func TestUpdateSurvivesTheControllerAndRunsOnce(t *testing.T) {
	for name, end := range map[string]func() error{"killed": system.KillController, "stopped": system.StopController} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			name := "survives-" + name
			deployed(t, g, name)
			before := pulumi.callsFor(t.Context(), g, name)
			release := pulumi.hold(g)
			defer release()
			artifact := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
			g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
			pulumi.awaitHeld(g)
			running := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return s.Status.CurrentUpdate != nil }).Status.CurrentUpdate

			g.Expect(end()).To(Succeed())
			g.Expect(system.StartController(t.Context())).To(Succeed())
			release()

			stack := await(t.Context(), g, name, ready(artifact.Digest))
			g.Expect(stack.Status.LastUpdate.Name).To(Equal(running.Name))
			g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
			g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
			g.Expect(updates(t.Context(), g, name)).To(HaveLen(2))
			calls := pulumi.callsFor(t.Context(), g, name)[len(before):]
			calls = slices.DeleteFunc(calls, func(call string) bool { return strings.HasSuffix(call, " version") })
			g.Expect(calls).To(HaveLen(1), "one update is one process of the CLI")
			g.Expect(calls[0]).To(ContainSubstring(" up "))
		})
	}
}

func TestRevisionsDuringAnUpdateEndWithTheLastOne(t *testing.T) {
	g := NewWithT(t)
	const name = "overtaken"
	deployed(t, g, name)
	release := pulumi.hold(g)
	defer release()
	var last *meta.Artifact
	for _, revision := range []string{"v2", "v3", "v4", "v5"} {
		last = artifacts.put(revision, packed(yamlProgram(name, "outputs:", "  x: "+revision)))
		g.Expect(publish(t.Context(), name, last)).To(Succeed())
		pulumi.awaitHeld(g)
	}
	release()
	stack := await(t.Context(), g, name, ready(last.Digest))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal(`"v5"`))
	g.Expect(len(updates(t.Context(), g, name))).To(BeNumerically("<=", 3), "revisions in between are skipped")
}

func TestStackDeletedDuringAnUpdateIsDestroyedAfterIt(t *testing.T) {
	g := NewWithT(t)
	const name = "interrupted-life"
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true })
	release := pulumi.hold(g)
	defer release()
	g.Expect(publish(t.Context(), name, artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2"))))).To(Succeed())
	pulumi.awaitHeld(g)
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	release()
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestRestartWritesNothingAboutSettledStacks(t *testing.T) {
	for name, end := range map[string]func() error{"killed": system.KillController, "stopped": system.StopController} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			name := "rests-" + name
			deployed(t, g, name)
			versions := func() []string {
				stack, workspace := &pulumiv1.Stack{}, &autov1alpha1.Workspace{}
				g.Expect(system.Client.Get(t.Context(), keyOf(name), stack)).To(Succeed())
				g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
				found := []string{stack.ResourceVersion, workspace.ResourceVersion}
				for _, update := range updates(t.Context(), g, name) {
					found = append(found, update.Name, update.ResourceVersion)
				}
				return found
			}
			g.Eventually(func() []string { return updates(t.Context(), g, name)[0].Finalizers }).WithTimeout(patience).WithPolling(pollInterval).Should(BeEmpty())
			before := versions()
			g.Expect(end()).To(Succeed())
			g.Expect(system.StartController(t.Context())).To(Succeed())
			// What is deployed after the restart comes after what was there before it.
			deployed(t, g, name+"-later")
			g.Expect(versions()).To(Equal(before))
		})
	}
}
