package stack

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Two other programs change what the Stack has, one at once and one later.
func TestDriftThatIsNowOneAndNowTheOtherIsNotCorrectedForEver(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	x, y := changed("a:b:C", "x", "size"), changed("a:b:C", "y", "size")
	corrections := 0
	for i := range 2 * maxTotalCorrections {
		since := 58*time.Minute - time.Duration(i)*time.Minute
		for _, at := range []time.Duration{since, since - 10*time.Second} {
			if i%2 == 0 {
				o.sees(at, x, y)
			} else {
				o.sees(at, x)
			}
		}
		if decide(*o).action != actionUpdate {
			break
		}
		corrections++
		recordCorrection(o.stack, &pulumiv1.CurrentStackUpdate{Drift: o.stack.Status.Drift.Digest}, checked(since-20*time.Second))
	}
	g.Expect(corrections).To(Equal(maxTotalCorrections))
	g.Expect(conditions.GetReason(o.stack, pulumiv1.DriftedCondition)).To(Equal(pulumiv1.DriftComesBackReason))
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(ContainSubstring(fmt.Sprintf("It came back after %d corrections", maxTotalCorrections)))

	// Later, other drift is a new case.
	o.stack.Status.Drift.Correction.TotalSince = new(ago(2 * time.Hour))
	for _, at := range []time.Duration{2 * time.Second, time.Second} {
		o.sees(at, y)
	}
	g.Expect(decide(*o).action).To(Equal(actionUpdate))
	recordCorrection(o.stack, &pulumiv1.CurrentStackUpdate{Drift: o.stack.Status.Drift.Digest}, checked(time.Second))
	g.Expect(o.stack.Status.Drift.Correction.Total).To(BeEquivalentTo(1))
}

func TestDriftThatIsAnotherOneInEachCheckIsReported(t *testing.T) {
	g := NewWithT(t)
	o := watchful("")
	due := func() time.Duration { return decideOnDrift(*o, decide(*o)).after }
	for i := range 3 {
		at := 30*time.Second - time.Duration(i)*10*time.Second
		o.sees(at, changed("a:b:C", "pool", fmt.Sprintf("members[%d]", i)))
		g.Expect(conditions.IsTrue(o.stack, pulumiv1.DriftedCondition)).To(Equal(i == 2), "check %d", i)
		if i < 2 {
			g.Expect(due()).To(BeNumerically("<=", confirmDelay))
		}
	}
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(ContainSubstring("members[2]"))
	g.Expect(due()).To(BeNumerically(">", 30*time.Minute), "the interval is that of the specification again")
	g.Expect(o.stack.Status.Drift.UnconfirmedChecks).To(BeZero())
}

func TestCorrectionIsNotForResourcesThatItsTargetWouldMatchByChance(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	wildcard, other := changed("aws:route53/record:Record", "*.example.com", "ttl"), changed("aws:route53/record:Record", "api.example.com", "ttl")
	for _, at := range []time.Duration{4 * time.Minute, 3 * time.Minute} {
		o.sees(at, wildcard, other)
	}
	g.Expect(o.correction(g).Spec.Target).To(ConsistOf(urnOf("aws:route53/record:Record", "api.example.com")))
	for _, at := range []time.Duration{2 * time.Minute, time.Minute} {
		o.sees(at, wildcard)
	}
	g.Expect(decide(*o).action).To(Equal(actionReady))
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(HaveSuffix("Revert it, or correct it with an update that refreshes"))
}
