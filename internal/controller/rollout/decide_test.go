package rollout

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func TestDecisions(t *testing.T) {
	t.Run("first-wave", func(t *testing.T) {
		f := newFleet(t)
		f.offers("b")
		f.Expect(f.turns()).To(ConsistOf(f.stacks[0], f.stacks[1], f.stacks[2]))
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutProgressingReason))
		f.Expect(f.last.failed || f.last.complete).To(BeFalse())
		f.Expect(f.last.wake).To(Equal(byStacks))
		f.Expect(f.last.after).To(Equal(waves.DefaultTimeout))
		f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveRunning))
		f.Expect(f.state("rest")).To(Equal(autov1alpha1.RolloutWavePending))
		f.Expect(f.rollout.Status.Done).To(Equal("0/8"))
		f.Expect(f.rollout.Status.Stable).To(HaveValue(Equal(revision("a"))))
		f.Expect(f.events).To(Equal([]string{eventStarted}))
	})
	t.Run("complete", func(t *testing.T) {
		f := newFleet(t)
		f.offers("b")
		f.finish("b")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutCompleteReason))
		f.Expect(f.last.complete).To(BeTrue())
		f.Expect(f.last.wake).To(Equal(bySource))
		f.Expect(f.last.after).To(BeZero())
		f.Expect(f.rollout.Status.Wave).To(BeEmpty())
		f.Expect(f.rollout.Status.Done).To(Equal("8/8"))
		f.Expect(f.rollout.Status.Stable).To(HaveValue(Equal(revision("b"))))
		f.Expect(f.events).To(Equal([]string{eventStarted, eventWaveComplete, eventWaveComplete, autov1alpha1.RolloutCompleteReason}))
	})
	t.Run("old-health-opens-nothing-argo-cd-29410", func(t *testing.T) {
		// All Stacks are ready, with the old revision: that says nothing about the new one.
		f := newFleet(t)
		f.offers("b")
		for range 3 {
			f.now = f.now.Add(time.Hour / 2)
			f.decide()
			f.Expect(f.turns()).To(HaveLen(3))
			f.Expect(f.state("rest")).To(Equal(autov1alpha1.RolloutWavePending))
		}
	})
	t.Run("that-nothing-changes-opens-nothing-ocm-1201", func(t *testing.T) {
		// Ready has been true for longer than the soak: that is the health of what ran before.
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Minute}
		for _, stack := range f.stacks {
			stack.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(-24 * time.Hour))
		}
		f.offers("b")
		f.finish("b")
		f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveSoaking), "their condition did not change in the update")
		f.Expect(f.turns()).To(BeEmpty())
	})
	t.Run("soak-kargo-4586", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		f.now = f.now.Add(time.Minute)
		f.finish("b")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
		f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveSoaking))
		f.Expect(f.last.wake).To(Equal(byTime))
		// What ends the soak brings the StackRollout back.
		f.Expect(f.last.after).To(Equal(time.Hour))
		f.now = f.now.Add(time.Hour - time.Second)
		f.Expect(f.decide().after).To(Equal(time.Second))
		f.Expect(f.turns()).To(BeEmpty())
		f.now = f.now.Add(time.Second)
		f.decide()
		f.Expect(f.turns()).To(HaveLen(5))
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue())
	})
	t.Run("commit-that-changes-nothing-in-a-wave-that-soaks", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		f.finish("b")
		f.now = f.now.Add(30 * time.Minute)
		for _, stack := range f.stacks[:3] {
			unchanged(stack, "c")
		}
		f.offers("c")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
		f.Expect(f.last.after).To(Equal(30 * time.Minute))
	})
	t.Run("commit-in-the-middle-of-a-wave", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		succeed(f.stacks[0], "b")
		f.offers("c")
		f.Expect(f.events).To(ContainElement(eventSuperseded))
		f.Expect(f.rollout.Status.Target.RolloutRevision).To(Equal(revision("c")))
		f.Expect(f.turns()).To(HaveLen(3), "turns for c")
		f.now = f.now.Add(10 * time.Minute)
		for _, stack := range f.stacks[:3] {
			unchanged(stack, "c")
		}
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason), "one of them was updated to b just now")
		f.Expect(f.last.after).To(Equal(50 * time.Minute))
	})
	t.Run("wave-in-which-nothing-is-updated", func(t *testing.T) {
		f := newFleet(t)
		f.now = f.now.Add(time.Hour) // since the StackRollout was created
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		for _, stack := range f.stacks[:3] {
			unchanged(stack, "b")
		}
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(5))
	})
	t.Run("wave-that-is-added-before-the-open-one", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		for _, stack := range f.stacks[:3] {
			succeed(stack, "b")
		}
		f.decide()
		begun := f.turns()[0]
		begun.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{}
		early := autov1alpha1.RolloutWave{Name: "early", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "early"}}}
		f.rollout.Spec.Waves = []autov1alpha1.RolloutWave{f.rollout.Spec.Waves[0], early, f.rollout.Spec.Waves[1]}
		pilot := f.stacks[7]
		if pilot == begun {
			pilot = f.stacks[6]
		}
		pilot.Labels = map[string]string{"tier": "early"}
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(begun), "what has begun goes on")
		succeed(begun, "b")
		begun.Status.CurrentUpdate = nil
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(pilot), "nobody else of the last wave begins before the new one is complete")
		succeed(pilot, "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1))
	})
	t.Run("concurrency", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(2)
		f.rollout.Spec.Waves[1].MaxConcurrent = percent("50%")
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(2))
		succeed(f.turns()[0], "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(2))
		for _, stack := range f.stacks[:3] {
			succeed(stack, "b")
		}
		f.decide()
		f.Expect(f.turns()).To(HaveLen(3), "half of five, rounded up")
	})
	t.Run("resources-that-take-long-are-no-failure", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		waits := f.turns()[0]
		fail(waits, "b")
		waits.Status.LastUpdate.Reason = autov1alpha1.AwaitingResourcesReason
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(waits), "it goes on")
		f.Expect(f.last.failed).To(BeFalse())
	})
	t.Run("halted", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		fail(f.turns()[0], "b")
		f.decide()
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
		f.Expect(f.last.failed).To(BeTrue())
		f.Expect(f.last.stalled).To(BeFalse(), "it is tried again")
		f.Expect(f.rollout.Status.Failing).To(ConsistOf(HaveField("Message", "quota exceeded")))
		f.decide()
		f.Expect(f.events).To(Equal([]string{eventStarted, autov1alpha1.RolloutHaltedReason}), "announced once")

		for _, stack := range f.stacks {
			if stack.Status.LastUpdate.State == pulumiv1.StackUpdateFailed {
				stack.Status.Conditions = append(stack.Status.Conditions, metav1.Condition{Type: meta.StalledCondition, Status: metav1.ConditionTrue})
				f.Expect(f.decide().stalled).To(BeTrue())
				succeed(stack, "b")
			}
		}
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1), "it goes on by itself")
	})
	t.Run("failures-that-are-allowed", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].MaxFailures = number(1)
		f.offers("b")
		fail(f.stacks[0], "b")
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(f.stacks[1], f.stacks[2]))
		succeed(f.stacks[1], "b")
		succeed(f.stacks[2], "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(5))
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue())
		f.Expect(f.rollout.Status.Done).To(Equal("7/8"))
	})
	t.Run("interruptions-and-locks-are-no-failures", func(t *testing.T) {
		f := newFleet(t)
		f.offers("b")
		fail(f.stacks[0], "b")
		f.stacks[0].Status.LastUpdate.Conflicts = 1
		fail(f.stacks[1], "b")
		f.stacks[1].Status.LastUpdate.Interruptions = 1
		f.Expect(f.decide().failed).To(BeFalse())
		f.Expect(f.turns()).To(HaveLen(3))
	})
	t.Run("failure-with-an-earlier-revision", func(t *testing.T) {
		f := newFleet(t)
		fail(f.stacks[0], "a")
		f.offers("b")
		f.Expect(f.last.failed).To(BeFalse())
		f.Expect(f.turns()).To(HaveLen(3))
	})
	t.Run("broken-before", func(t *testing.T) {
		f := newFleet(t)
		f.stacks[0].Status.LastUpdate.LastSuccessfulCommit, f.stacks[0].Status.LastAppliedRevision = revision("0").Digest, revision("0").Revision
		f.offers("b")
		fail(f.stacks[0], "b")
		succeed(f.stacks[1], "b")
		succeed(f.stacks[2], "b")
		f.decide()
		f.Expect(f.rollout.Status.Waves[0].BrokenBefore).To(BeEquivalentTo(1))
		f.Expect(f.turns()).To(HaveLen(5), "it blocks nothing")
	})
	t.Run("timeout", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Timeout = &metav1.Duration{Duration: time.Minute}
		f.offers("b")
		f.Expect(f.last.after).To(Equal(time.Minute))
		succeed(f.stacks[0], "b")
		succeed(f.stacks[1], "b")
		f.now = f.now.Add(time.Minute)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
		f.Expect(f.turns()).To(ConsistOf(f.stacks[2]), "it may still end")
		succeed(f.stacks[2], "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(5))
	})
	t.Run("left-out", func(t *testing.T) {
		f := newFleet(t)
		f.stacks[0].Spec.Suspend = true
		f.stacks[1].Spec.Preview = true
		f.stacks[2].DeletionTimestamp = &metav1.Time{Time: noon}
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(5))
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue())
		f.stacks[0].Spec.Suspend = false
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(f.stacks[0]), "it gets its turn at once")
	})
	t.Run("left-out-while-it-is-updated", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		runs := f.turns()[0]
		runs.Status.CurrentUpdate, runs.Spec.Suspend = &pulumiv1.CurrentStackUpdate{}, true
		f.now = f.now.Add(time.Hour)
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(runs), "its update goes on")
		f.Expect(f.rollout.Status.Waves[0].LeftOut).To(BeEquivalentTo(1))
		f.Expect(f.last.after).To(Equal(waves.DefaultTimeout - time.Hour))
		f.now = f.now.Add(waves.DefaultTimeout - time.Hour)
		f.decide()
		f.Expect(f.turns()).To(And(HaveLen(1), Not(ContainElement(runs))), "others do not wait for ever")
		next := f.turns()[0]
		next.Status.CurrentUpdate, next.DeletionTimestamp = &pulumiv1.CurrentStackUpdate{}, &metav1.Time{Time: noon}
		f.decide()
		f.Expect(f.turns()).To(And(HaveLen(1), Not(ContainElement(next))), "nor for a destroy")
	})
	t.Run("suspended", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		f.rollout.Spec.Suspend = true
		f.finish("b")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSuspendedReason))
		f.Expect(f.last.wake).To(Equal(byEdit))
		f.Expect(f.last.failed).To(BeFalse())
		f.Expect(f.rollout.Status.Done).To(Equal("1/8"))
	})
	t.Run("dependency", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.stacks[0].Spec.Inputs = []autov1alpha1.Input{{Key: "url", Stack: &autov1alpha1.StackOutput{Name: "s1", Output: "url"}}}
		f.stacks[1].Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: "s2"}}
		f.offers("b")
		for _, stack := range []*pulumiv1.Stack{f.stacks[2], f.stacks[1], f.stacks[0]} {
			f.Expect(f.turns()).To(ConsistOf(stack))
			succeed(stack, "b")
			f.decide()
		}
	})
	t.Run("dependency-that-fails", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].MaxFailures = number(1)
		f.stacks[0].Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "s1"}}
		f.offers("b")
		fail(f.stacks[1], "b")
		succeed(f.stacks[2], "b")
		f.decide()
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.last.message).To(HavePrefix("2 of the Stacks of wave canary failed with main@sha1:"), "it cannot be updated either")
		f.Expect(f.rollout.Status.Failing).To(ContainElement(autov1alpha1.RolloutFailure{Stack: "team/s0", Message: "depends on Stack team/s1, which failed"}))
		f.rollout.Spec.Waves[0].MaxFailures = number(2)
		f.decide()
		f.Expect(f.rollout.Status.Wave).To(Equal("rest"))
		succeed(f.stacks[1], "b")
		f.decide()
		f.Expect(f.turns()).To(ContainElement(f.stacks[0]), "it is mended")
	})
	t.Run("dependencies-in-a-circle", func(t *testing.T) {
		f := newFleet(t)
		f.stacks[0].Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "s1"}}
		f.stacks[1].Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "s2"}}
		f.stacks[2].Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "s1"}}
		f.offers("b")
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.last.message).To(MatchRegexp("^wave canary waits: its Stacks wait for each other, remove one of these dependencies: team/s([12]) → team/s[12] → team/s[12]$"))
	})
	t.Run("dependency-in-a-later-wave-atlantis-5791", func(t *testing.T) {
		// Two kinds of order that contradict each other.
		f := newFleet(t)
		f.stacks[0].Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "s7"}}
		f.offers("b")
		f.now = f.now.Add(f.last.after)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.DependencyInLaterWaveReason))
		f.Expect(f.last.message).To(ContainSubstring("Stack team/s0 in wave canary depends on Stack team/s7 in the later wave rest"))
		f.Expect(f.last.stalled).To(BeTrue())
		f.Expect(f.last.wake).To(Equal(byStacks), "of which one may say that it has the revision")
		f.Expect(f.turns()).To(BeEmpty())
		unchanged(f.stacks[7], "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(3), "it has the revision already")
	})
	t.Run("invalid-selector", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Stacks.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
		f.offers("b")
		f.Expect(f.last.reason).To(Equal(pulumiv1.SpecInvalidReason))
		f.Expect(f.last.message).To(ContainSubstring(`wave "canary"`))
		f.Expect(f.last.stalled).To(BeTrue())
		f.Expect(f.turns()).To(BeEmpty())
	})
	t.Run("source-is-gone", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		f.offer, f.problem = nil, &source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "gone", Watched: true}
		first := f.turns()
		f.Expect(f.decide().reason).To(Equal(pulumiv1.SourceNotFoundReason))
		f.Expect(f.last.wake).To(Equal(bySource))
		f.Expect(f.turns()).To(Equal(first), "what was given stays")
		succeed(first[0], "b")
		f.decide()
		f.Expect(f.turns()).To(BeEmpty(), "nothing is given")
	})
	t.Run("revert", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		f.finish("b")
		// The others never had b: for them, the revert is what they have.
		for _, stack := range f.stacks[3:] {
			unchanged(stack, "c")
		}
		f.offers("c")
		f.Expect(f.turns()).To(ConsistOf(f.stacks[0], f.stacks[1], f.stacks[2]))
		f.finish("c")
		f.Expect(f.last.complete).To(BeFalse(), "the canaries soak")
		f.now = f.now.Add(time.Hour)
		f.Expect(f.decide().complete).To(BeTrue())
	})
	t.Run("status-is-lost", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		f.finish("b")
		f.now = f.now.Add(30 * time.Minute)
		f.rollout.Status = autov1alpha1.StackRolloutStatus{}
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
		f.Expect(f.last.after).To(Equal(time.Hour), "it soaks again")
		f.Expect(f.turns()).To(BeEmpty())
	})
	t.Run("Stack-that-joins-a-complete-wave", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[1].MaxConcurrent = number(1)
		f.offers("b")
		for _, stack := range f.stacks[:3] {
			succeed(stack, "b")
		}
		f.decide()
		late := f.add("late", true)
		f.decide()
		f.Expect(f.turns()).To(ContainElement(late))
		f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveRunning))
	})
	t.Run("promotion", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		f.finish("b")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason), "the checks before a promotion hold for it, too")
		f.now = f.now.Add(time.Hour)
		f.Expect(f.decide().reason).To(Equal(autov1alpha1.PromotionRequiredReason))
		f.Expect(f.last.message).To(Equal("wave rest waits for a promotion of " + revision("b").Revision))
		f.Expect(f.last.events[len(f.last.events)-1].message).To(HaveSuffix("rollout promote infrastructure -n platform --wave rest --revision " + revision("b").Revision))
		f.Expect(f.last.wake).To(Equal(byApproval))
		f.Expect(f.last.failed).To(BeFalse())
		f.decide()
		f.approve(autov1alpha1.ApprovalApprove, "rest", "a")
		f.approve(autov1alpha1.ApprovalApprove, "canary", "b")
		f.Expect(f.decide().reason).To(Equal(autov1alpha1.PromotionRequiredReason), "of another revision, and another wave")
		f.Expect(f.events).To(Equal([]string{eventStarted, eventWaveComplete, autov1alpha1.PromotionRequiredReason}), "announced once")
		f.approve(autov1alpha1.ApprovalApprove, "rest", "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(5))
		f.approvals = nil
		f.decide()
		f.Expect(f.turns()).To(HaveLen(5), "what has begun goes on")
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue())
	})
	t.Run("hot-fix", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[1].Promotion, f.rollout.Spec.MaxConcurrent = autov1alpha1.PromoteManual, number(2)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.approve(autov1alpha1.ApprovalApprove, "", "b")
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(2), "not more at once than otherwise")
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue(), "no soak, and no promotion")
	})
	t.Run("rejection", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		f.offers("b")
		f.approve(autov1alpha1.ApprovalApprove, "", "b")
		f.approve(autov1alpha1.ApprovalReject, "", "b")
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1), "what has begun is finished")
		f.finish("b")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RevisionRejectedReason))
		f.Expect(f.last.message).To(Equal("alice rejected " + revision("b").Revision + ": no other Stack gets it"))
		f.Expect(f.last.stalled).To(BeTrue())
		f.Expect(f.rollout.Status.Rejected).To(Equal(revision("b").Revision))
		f.Expect(f.events).To(Equal([]string{eventStarted, autov1alpha1.RevisionRejectedReason}), "announced once")
		f.offers("c")
		f.Expect(f.last.failed).To(BeFalse())
		f.Expect(f.turns()).To(HaveLen(1))
		f.Expect(f.rollout.Status.Rejected).To(BeEmpty())
	})
}
