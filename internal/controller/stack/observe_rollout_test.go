package stack

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func TestRolloutRefNeedsASourceThatStacksShare(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Spec: pulumiv1.StackSpec{Stack: "dev", RolloutRef: &pulumiv1.RolloutReference{Name: "all"}}}
	_, err := desire(stack)
	g.Expect(err).To(MatchError(ContainSubstring("spec.rolloutRef needs spec.fluxSource or spec.programRef")))
	stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: "app"}
	_, err = desire(stack)
	g.Expect(err).NotTo(HaveOccurred())
}

// The condition appears after five to ten minutes, at another time for each Stack, and does not change with each commit.
func TestConditionHeld(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	times := map[time.Duration]bool{}
	for i := range 100 {
		stack := &pulumiv1.Stack{UID: types.UID(fmt.Sprintf("uid-%d", i))}
		o := &observation{now: now, stack: stack, held: &held{waves.Verdict{Reason: pulumiv1.WaveNotOpenReason, Message: "waits"}, now}}
		left := showHeld(o, decision{})
		g.Expect(left).To(And(BeNumerically(">=", heldAfter), BeNumerically("<", heldAfter+spreadOver)))
		times[left] = true
		g.Expect(conditions.Has(stack, pulumiv1.HeldCondition)).To(BeFalse())

		o.now = now.Add(left)
		g.Expect(showHeld(o, decision{})).To(BeZero())
		shown := *conditions.Get(stack, pulumiv1.HeldCondition)
		g.Expect(shown.Reason).To(Equal(pulumiv1.WaveNotOpenReason))

		o.now, o.held.since = o.now.Add(time.Hour), o.now.Add(time.Hour)
		g.Expect(showHeld(o, decision{})).To(BeZero(), "a newer commit")
		g.Expect(*conditions.Get(stack, pulumiv1.HeldCondition)).To(Equal(shown))

		o.held = nil
		g.Expect(showHeld(o, decision{})).To(BeZero())
		g.Expect(conditions.Has(stack, pulumiv1.HeldCondition)).To(BeFalse())
	}
	g.Expect(len(times)).To(BeNumerically(">", 90))
}
