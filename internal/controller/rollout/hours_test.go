package rollout

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func TestWindows(t *testing.T) {
	t.Run("of-the-rollout", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.rollout.Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowAllow, -time.Hour, time.Hour), between(autov1alpha1.WindowAllow, 9*time.Hour, 10*time.Hour)}
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(1))
		f.Expect(f.last.after).To(Equal(time.Hour), "when the window closes")
		f.now = noon.Add(time.Hour)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutWindowClosedReason))
		f.Expect(f.last.message).To(Equal("wave canary waits: the next window that allows changes opens at 2026-11-28T21:00:00Z"))
		f.Expect(f.last.failed).To(BeFalse(), "whoever waits for it must not wait for hours")
		f.Expect(f.last.wake).To(Equal(byTime))
		f.Expect(f.last.after).To(Equal(8 * time.Hour))
		f.Expect(f.rollout.Status.Paused).To(BeTrue(), "who has a turn and has not begun does not begin")
		f.Expect(f.rollout.Status.Waves[0]).To(And(HaveField("Running", BeZero()), HaveField("Waiting", BeEquivalentTo(3))), "an alert must not wait for it")
		f.turns()[0].Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{}
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1), "who has begun goes on")
		f.Expect(f.rollout.Status.Waves[0].Running).To(BeEquivalentTo(1))
		f.turns()[0].Status.CurrentUpdate = nil
		succeed(f.turns()[0], "b")
		f.decide()
		f.Expect(f.turns()).To(BeEmpty())

		f.now = noon.Add(9 * time.Hour)
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1))
		f.Expect(f.rollout.Status.Paused).To(BeFalse())
		f.now = noon.Add(10 * time.Hour)
		f.decide()
		f.Expect(f.last.wake).To(Equal(byEdit), "no window opens any more")
		f.now = noon.Add(20 * time.Hour)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutWindowClosedReason), "the time does not count")
		f.approve(autov1alpha1.ApprovalApprove, "", "b")
		f.decide()
		f.Expect(f.rollout.Status.Paused).To(BeFalse())
		f.Expect(f.rollout.Status.Turns[0].Since.Time).To(BeTemporally("==", f.now), "it may have waited")
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue(), "somebody promoted all")
	})
	t.Run("of-a-stack", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.stacks[0].Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowDeny, -time.Hour, 9*time.Hour)}
		f.offers("b")
		f.Expect(f.turns()).NotTo(ContainElement(f.stacks[0]), "it would take the place of another one")
		f.finish("b")
		f.Expect(f.last.message).To(Equal("wave canary waits: 1 of its Stacks wait for their own windows"))
		f.Expect(f.last.after).To(Equal(9 * time.Hour))
		f.now = noon.Add(9 * time.Hour)
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(f.stacks[0]))

		f.stacks[0].Generation++
		f.stacks[0].Spec.Windows = []autov1alpha1.Window{{Policy: autov1alpha1.WindowAllow, Cron: "0 25 * * *", Window: &metav1.Duration{Duration: time.Hour}}}
		f.offers("c")
		f.Expect(f.turns()).NotTo(ContainElement(f.stacks[0]), "the Stack says what is wrong")
	})
	t.Run("invalid", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowDeny, -time.Hour, -time.Minute), {Policy: autov1alpha1.WindowAllow, Cron: "0 8 * * *",
			TimeZone: "Europe/Atlantis", Window: &metav1.Duration{Duration: time.Hour}}}
		f.offers("b")
		f.Expect(f.last.reason).To(Equal(pulumiv1.SpecInvalidReason))
		f.Expect(f.last.message).To(HavePrefix(`spec.windows: window 2: timeZone "Europe/Atlantis"`))
		f.Expect(f.last.stalled).To(BeTrue())
		f.Expect(f.turns()).To(BeEmpty())
	})
}

// Tenants choose the windows of their Stacks: as many as there may be, of schedules that take long to evaluate.
func TestWindowsOfManyStacksTakeBoundedTime(t *testing.T) {
	g := NewWithT(t)
	var costly []autov1alpha1.Window
	for i := range 50 {
		costly = append(costly, autov1alpha1.Window{Policy: autov1alpha1.WindowAllow, Cron: fmt.Sprintf("%d 0 29 2 *", i), TimeZone: "America/Sao_Paulo",
			Window: &metav1.Duration{Duration: time.Minute}})
	}
	r, stacks := &Reconciler{}, 10_000
	evaluated := func(now time.Time) (count int, next time.Time) {
		hours := r.hoursOf(types.NamespacedName{Name: "all"}, stacks, now)
		for i := range stacks {
			state := hours(&waves.Member{UID: types.UID(fmt.Sprint(i)), Windows: costly})
			g.Expect(state.Open).To(BeFalse())
			if next = state.Next; next.Sub(now) > time.Hour {
				count++
			}
		}
		return count, next
	}
	first, next := evaluated(noon)
	t.Logf("%d of %d Stacks with 50 windows in %s", first, stacks, hoursBudget)
	g.Expect(first).To(And(BeNumerically(">", 0), BeNumerically("<", stacks)))
	g.Expect(next).To(BeTemporally("==", noon.Add(hoursInterval)), "the rest follows")
	second, _ := evaluated(noon.Add(hoursInterval))
	g.Expect(second).To(BeNumerically(">", first), "what is known is not evaluated again")
}

// The clock of the controller may have been ahead by months, until it was corrected or another controller took over.
func TestClockThatWasAheadDelaysNothing(t *testing.T) {
	const ahead = 100 * 24 * time.Hour
	t.Run("soak", func(t *testing.T) {
		f := soaking(t)
		f.now = f.now.Add(-ahead)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
		f.Expect(f.last.after).To(Equal(time.Hour))
		f.now = f.now.Add(time.Hour)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutProgressingReason))
		f.Expect(f.turns()).To(HaveLen(5))
	})
	t.Run("timeout", func(t *testing.T) {
		f := newFleet(t)
		f.offers("b")
		f.now = f.now.Add(-ahead)
		f.decide()
		f.Expect(f.last.after).To(Equal(waves.DefaultTimeout))
		f.now = f.now.Add(waves.DefaultTimeout)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	})
	t.Run("windows-of-a-stack", func(t *testing.T) {
		f := newFleet(t)
		f.stacks[0].Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowDeny, 0, ahead), between(autov1alpha1.WindowDeny, 2*ahead, 3*ahead)}
		f.now = noon.Add(2 * ahead)
		f.offers("b")
		f.Expect(f.turns()).NotTo(ContainElement(f.stacks[0]))
		f.now = noon.Add(-time.Hour)
		f.decide()
		f.Expect(f.turns()).To(ContainElement(f.stacks[0]))
	})
}

func TestTimeWithoutAControllerIsNoTimeout(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Timeout = &metav1.Duration{Duration: time.Minute}
	f.rollout.Spec.Waves[1].Timeout = &metav1.Duration{Duration: time.Hour}
	f.offers("b")
	for _, stack := range f.turns() {
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{}
	}
	f.now = f.now.Add(15 * time.Minute)
	f.started = f.now
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutProgressingReason), "the results may not be recorded yet")
	f.Expect(f.last.after).To(Equal(time.Minute), "no longer than the timeout")
	f.finish("b")
	f.Expect(f.last.complete).To(BeTrue())
	f.Expect(f.events).NotTo(ContainElement(autov1alpha1.RolloutHaltedReason))

	f.offers("d")
	for _, stack := range f.stacks[:3] {
		f.ends(stack, "d")
	}
	f.decide()
	f.now = f.now.Add(3 * time.Hour)
	f.started = f.now.Add(-time.Minute)
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutProgressingReason))
	f.Expect(f.last.after).To(Equal(startGrace - time.Minute))
	f.now = f.now.Add(startGrace - time.Minute)
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	announced := len(f.events)

	f.started = f.now
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "a restart begins nothing")
	f.rollout.Status.Failing = f.rollout.Status.Failing[:1] // there is no room for more
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "nor for one that is not named")
	f.Expect(f.events).To(HaveLen(announced))
}
