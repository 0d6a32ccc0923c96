package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// It runs alone, before the parallel tests, because it kills the controller.
func TestUpdateSurvivesTheControllerAndRunsOnce(t *testing.T) {
	g := NewWithT(t)
	const name = "survives"
	first := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, first)).To(Succeed())
	await(t.Context(), g, name, ready(first.Digest))
	before := pulumi.calls(g)

	release := pulumi.hold(g)
	defer release()
	artifact := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	pulumi.awaitHeld(g)
	running := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return s.Status.CurrentUpdate != nil }).Status.CurrentUpdate

	g.Expect(system.KillController()).To(Succeed())
	g.Expect(system.StartController(t.Context())).To(Succeed())
	release()

	stack := await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(stack.Status.LastUpdate.Name).To(Equal(running.Name))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2))
	calls := pulumi.calls(g)[len(before):]
	g.Expect(calls).To(HaveLen(1), "one update is one process of the CLI")
	g.Expect(calls[0]).To(ContainSubstring(" up "))
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
}
