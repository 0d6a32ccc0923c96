package stack

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Without the Update that had them, outputs are nowhere. Only another update can bring them back.
func TestOutputsThatAreStoredNowhereAreMadeAgain(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.give(stack, map[string]string{"url": `"1"`})
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	s.Expect(stack.Status.OutputObjects).To(BeNil())
	for _, update := range s.updates() {
		update.Finalizers = nil
		s.Expect(s.client.Update(t.Context(), &update)).To(Succeed())
		s.Expect(s.client.Delete(t.Context(), &update)).To(Succeed())
	}
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "network"}} })
	s.give(stack, map[string]string{"url": `"2"`})
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "2"}))
}

// The agent has forgotten such outputs. Objects without them would have consumers deploy what nobody asked for.
func TestOutputsThatCouldNotBeStoredChangeNoObject(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(stack *pulumiv1.Stack) { stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "network"}} })
	s.give(stack, map[string]string{"url": `"1"`})
	before := stack.Status.DeepCopy()
	end := func(mark func(*autov1alpha1.Update)) {
		s.request(stack)
		update := s.awaitUnfinishedUpdate()
		s.mark(update, started, succeeded, mark)
		s.await(stack, func(stack *pulumiv1.Stack) bool {
			return stack.Status.LastUpdate.Name == update.Name && stack.Status.CurrentUpdate == nil
		})
		s.Expect(stack.Status.StoredOutputs).To(Equal(before.StoredOutputs))
		s.Expect(stack.Status.Outputs).To(Equal(before.Outputs))
		s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "1"}))
	}
	denied := func(update *autov1alpha1.Update) { update.Status.OutputsNotStored = "exceeded quota" }
	end(denied)
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.OutputsNotWrittenReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring("exceeded quota"))
	end(func(update *autov1alpha1.Update) {
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason, "no quota")
	})
	s.Expect(stack.Status.OutputsNotStored).To(Equal("exceeded quota"), "a failure does not change that")
	end(denied)

	s.request(stack)
	s.give(stack, map[string]string{"url": `"2"`})
	s.Expect(conditions.IsReady(stack)).To(BeTrue())
	s.Expect(stack.Status.OutputsNotStored).To(BeEmpty())
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "2"}))
}

// Whoever deletes an Update says nothing about what the API server accepts.
func TestOutputsOfAnUpdateThatWasDeletedAreMadeAgainIfSomebodyNeedsThem(t *testing.T) {
	source := &pulumiv1.StoredOutputs{Update: "app-0", UID: "earlier"}
	written := func(o *observation) {
		o.stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "network"}}
		o.stack.Status.OutputObjects = &pulumiv1.OutputObjectsStatus{UID: source.UID, SpecDigest: outputsDigest(o.stack)}
	}
	used := func(o *observation) { o.outputs.used = true }
	because := func(why string) func(*observation) {
		return func(o *observation) { o.stack.Status.OutputsNotStored, o.outputs.source = why, source }
	}
	deleted, denied := because(autov1alpha1.UpdateWasDeleted), because("exceeded quota")
	expectDecisions(t, []decisionCase{
		{name: "nobody needs them", given: with(upToDate(), deleted), action: actionReady},
		{name: "they are written", given: with(upToDate(), deleted, written), action: actionUpdate},
		{name: "another Stack has them as inputs", given: with(upToDate(), deleted, used), action: actionUpdate},
		{name: "they could not be stored", given: with(upToDate(), denied, written, used), action: actionStall, reason: pulumiv1.OutputsNotWrittenReason, wakes: true},
	})
}

func TestFirstOutputsThatCouldNotBeStoredAreNoReasonForAnUpdateOfItsOwn(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(stack *pulumiv1.Stack) { stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "network"}} })
	s.mark(s.awaitUnfinishedUpdate(), started, succeeded, func(update *autov1alpha1.Update) { update.Status.OutputsNotStored = "exceeded quota" })
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.OutputsNotWrittenReason))
	s.Expect(stack.Status.StoredOutputs).To(BeNil())
	s.Expect(stack.Status.CurrentUpdate).To(BeNil())
	s.request(stack)
	s.give(stack, map[string]string{"url": `"1"`})
	s.Expect(s.secretData("network")).To(Equal(map[string]string{"url": "1"}))
}
