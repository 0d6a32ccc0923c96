package pods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestPodRunsOnWhileItsChangedTemplateIsRefused(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	a := deploySleeping(t, "template-refused", "")
	running := a.begin(a.untilReleased(), "create start")
	pod := a.pod()
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) {
		podSpecOf(stack).NodeSelector = map[string]string{"no label": "x"}
	})
	// The update ends as if nothing had happened, and the next one waits.
	a.release()
	awaitEnd(a.ctx, a.WithT, running)
	a.Expect(running.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), running.Status.Message)
	awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.WorkspaceFailedReason))
		g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(And(
			HavePrefix(`workspace "template-refused" is not ready (ObjectRejected): the API server refuses`), ContainSubstring("no label")))
	})
	a.Expect(a.pod().UID).To(Equal(pod.UID))
	a.Expect(a.pod().DeletionTimestamp).To(BeNil())

	begin := time.Now()
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) { podSpecOf(stack).NodeSelector = nil })
	_, err := system.WaitReady(a.ctx, a.App)
	a.Expect(err).NotTo(HaveOccurred())
	t.Logf("healed in %s", time.Since(begin))
	a.Expect(a.pod().UID).To(Equal(pod.UID), "it is what the Stack asks for")
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end"}))
}

func TestUpdateWaitsForASecretInAPodThatRuns(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	g := NewWithT(t)
	const name = "secret-missing"
	ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
	defer cancel()
	removeNamespaceAtEnd(t, g, name)
	checkStatuses(t, name)
	recorder := record(t, g, name)
	app, err := system.Deploy(ctx, name, programWith(name, "one"), func(stack *pulumiv1.Stack) {
		stack.Spec.EnvRefs["KEY"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: late, Key: "the-key"}}
	})
	g.Expect(err).NotTo(HaveOccurred())
	awaitReadyWorkspace(ctx, g, app.Key())
	stack := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.SecretNotFoundReason))
	})
	message := conditions.GetMessage(stack, meta.ReadyCondition)
	t.Log(message)
	g.Expect(message).To(And(ContainSubstring(`secret "late"`), ContainSubstring(`variable "KEY"`), ContainSubstring("does not exist")))
	pod := podOf(ctx, g, name, name)

	// The Secret without the key is not enough.
	wrong := secret(name, late, "other-key", "value")
	g.Expect(system.Client.Create(ctx, wrong)).To(Succeed())
	stack = awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HavePrefix(`waiting for key "the-key" in secret "late"`))
	})
	t.Log(conditions.GetMessage(stack, meta.ReadyCondition))
	begin := time.Now()
	wrong.StringData = map[string]string{"the-key": "value"}
	g.Expect(system.Client.Update(ctx, wrong)).To(Succeed())
	_, err = system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("healed in %s: %v", time.Since(begin), recorder.reasons(pulumiv1.StackKind, time.Time{}))
	g.Expect(warnings(ctx, g, name, pulumiv1.SecretNotFoundReason)).To(ConsistOf(HavePrefix("Stack " + pulumiv1.SecretNotFoundReason + " x1: ")))
	after := podOf(ctx, g, name, name)
	g.Expect(after.UID).To(Equal(pod.UID))
	g.Expect(pulumiOf(after).RestartCount).To(BeZero())
}
