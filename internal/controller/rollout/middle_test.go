package rollout

import (
	"fmt"
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

// ends makes the Stack report that it was updated to the revision at this time.
func (f *fleet) ends(stack *pulumiv1.Stack, letter string) {
	succeed(stack, letter)
	stack.Status.LastUpdate.LastResyncTime = metav1.NewTime(f.now)
}

// unready makes the Stack not ready, for a reason that has nothing to do with its revision.
func unready(stack *pulumiv1.Stack) {
	stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse}, {Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue}}
}

func ready(stack *pulumiv1.Stack) {
	stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}
}

// soaking returns a fleet whose canaries were updated to revision b at noon, and soak for an hour.
func soaking(t *testing.T) *fleet {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
	f.offers("b")
	for _, stack := range f.turns() {
		f.ends(stack, "b")
	}
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
	f.Expect(f.last.after).To(Equal(time.Hour))
	return f
}

// TestManualWaveBeginsForNobody: a Stack that has a turn and gets the labels of a wave with promotion brings nobody along.
func TestManualWaveBeginsForNobody(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual
	f.offers("b")
	moved := f.stacks[0]
	moved.Labels, moved.Status.CurrentUpdate = nil, &pulumiv1.CurrentStackUpdate{}
	for _, stack := range f.stacks[1:3] {
		f.ends(stack, "b")
	}
	f.decide()
	f.Expect(f.turns()).To(ConsistOf(moved), "which goes on")
	f.Expect(f.last.reason).To(Equal(autov1alpha1.PromotionRequiredReason))
	f.Expect(f.state("rest")).To(Equal(autov1alpha1.RolloutWavePending))
	f.ends(moved, "b")
	f.decide()
	f.Expect(f.turns()).To(BeEmpty())

	f.approve(autov1alpha1.ApprovalApprove, "rest", "b")
	f.rollout.Spec.MaxConcurrent = number(1)
	f.decide()
	f.Expect(f.turns()).To(HaveLen(1))
	f.approvals = nil
	f.decide()
	f.ends(f.turns()[0], "b")
	f.decide()
	f.Expect(f.turns()).To(BeEmpty(), "the promotion is gone")
}

// TestOtherContentOfTheSameRevisionIsRolledOut: a source may publish a revision again with other content, because it includes another source.
func TestOtherContentOfTheSameRevisionIsRolledOut(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	f.finish("b")
	again := revision("b")
	again.Digest = revision("c").Digest
	f.offer = &again
	f.decide()
	f.Expect(f.turns()).To(HaveLen(3), "wave by wave")
	f.Expect(f.rollout.Status.Done).To(Equal("0/8"))
	f.Expect(waves.Release(f.stacks[7], f.rollout, again, again.Digest, nil).Released).To(BeFalse())
	f.Expect(waves.Release(f.turns()[0], f.rollout, again, again.Digest, nil).Released).To(BeTrue())
	f.Expect(waves.Woken(&autov1alpha1.StackRolloutStatus{Target: &autov1alpha1.RolloutTarget{RolloutRevision: revision("b")}, Turns: f.rollout.Status.Turns},
		&f.rollout.Status)).To(HaveLen(3), "they are woken")
	other := f.stacks[7].DeepCopy() // has the same commit from a source of its own
	other.Spec.FluxSource.SourceRef.Name, other.Spec.FluxSource.SourceRef.Namespace = "own", "team"
	f.Expect(waves.Observe(other, f.rollout, &f.rollout.Status).State).To(Equal(waves.Updated))
}

// TestStableRevisionIsRolledOutToThoseThatHaveAnother: only new Stacks get it at once.
func TestStableRevisionIsRolledOutToThoseThatHaveAnother(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	for _, stack := range f.turns() {
		f.ends(stack, "b")
	}
	f.rollout.Spec.MaxConcurrent, f.rollout.Spec.Suspend = number(1), true
	f.offers("a")
	f.Expect(f.turns()).To(BeEmpty())
	released := func(stack *pulumiv1.Stack) bool {
		return waves.Release(stack, f.rollout, revision("a"), revision("a").Digest, nil).Released
	}
	f.Expect(released(f.stacks[0])).To(BeFalse())
	f.rollout.Spec.Suspend = false
	f.decide()
	f.Expect(f.turns()).To(HaveLen(1))
	f.Expect(released(f.turns()[0])).To(BeTrue())

	added := f.add("new", false)
	added.Status = pulumiv1.StackStatus{}
	f.Expect(released(added)).To(BeTrue())
}

// TestFailureIsOneHoweverManyCommitsThereWere: what a Stack succeeded with is known as long as it has that, so a failure is one of the target.
func TestFailureIsOneHoweverManyCommitsThereWere(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[1].MaxConcurrent = number(200)
	f.offers("b")
	f.finish("b")
	for i := range 3 * maxEarlier {
		f.offers(fmt.Sprintf("%x", 2+i%8))
	}
	f.Expect(len(f.rollout.Status.Earlier)).To(BeNumerically(">", maxEarlier))
	f.Expect(f.rollout.Status.Earlier).To(ContainElement(revision("b")))
	f.rollout.Status.Stable = new(revision("a"))
	f.offers("c")
	fail(f.turns()[0], "c")
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
}

// decidesNothing expects that a decision gives nobody a turn, and opens no wave.
func (f *fleet) decidesNothing() {
	turns, wave := len(f.turns()), f.rollout.Status.Wave
	f.decide()
	f.Expect(f.turns()).To(HaveLen(turns))
	f.Expect(f.rollout.Status.Wave).To(Equal(wave))
}

// TestSoakGoesOnWhenNothingWasUpdated: only the end of an update begins it again.
func TestSoakGoesOnWhenNothingWasUpdated(t *testing.T) {
	for name, change := range map[string]func(*fleet){
		"source is gone for a while": func(f *fleet) {
			for _, stack := range f.stacks[:3] {
				unready(stack)
			}
			f.decidesNothing()
			f.now = f.now.Add(time.Minute)
			for _, stack := range f.stacks[:3] {
				ready(stack)
			}
		},
		"edit that needs no update": func(f *fleet) {
			f.stacks[0].Generation++
			f.decidesNothing()
			f.stacks[0].Status.ObservedGeneration++
		},
		"resync": func(f *fleet) {
			f.stacks[0].Status.LastUpdate.LastResyncTime = metav1.NewTime(f.now)
		},
		"resync of one that did not change": func(f *fleet) {
			f.stacks[2].Status.LastUpdate.Revision = revision("a").Revision
			f.decidesNothing()
			f.ends(f.stacks[2], "b")
		},
		"Stack that only moved": func(f *fleet) {
			f.stacks[1].Labels = nil
			f.decide()
			f.stacks[1].Labels = f.stacks[0].Labels
		},
		"another commit and back": func(f *fleet) {
			for _, stack := range f.stacks[:3] {
				unchanged(stack, "c")
			}
			f.offers("c")
			for _, stack := range f.stacks[:3] {
				unchanged(stack, "b")
			}
			f.offers("b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := soaking(t)
			f.now = f.now.Add(30 * time.Minute)
			change(f)
			f.decide()
			f.Expect(f.turns()).To(BeEmpty())
			f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
			f.Expect(f.last.after).To(BeNumerically("~", 30*time.Minute, time.Minute))
			f.now = noon.Add(time.Hour)
			f.decide()
			f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveComplete))
			f.Expect(f.turns()).To(HaveLen(5))

			// The next wave goes on, too.
			change(f)
			f.decide()
			f.Expect(f.turns()).To(HaveLen(5))
			f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveComplete))
		})
	}
	t.Run("revert before anything began", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.now = f.now.Add(2 * time.Hour)
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(3))
		for _, stack := range f.stacks {
			f.ends(stack, "a") // again, at its interval
		}
		f.offers("a")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutCompleteReason))
		f.offers("b")
		f.turns()[0].Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{}
		f.offers("a")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason), "one is being updated")
	})
	t.Run("another attempt", func(t *testing.T) {
		f := soaking(t)
		f.now = f.now.Add(30 * time.Minute)
		fail(f.stacks[0], "b")
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
		f.ends(f.stacks[0], "b")
		f.decide()
		f.Expect(f.last.after).To(Equal(time.Hour))
	})
}

// TestStackThatFailedWithARevertedRevisionGetsATurn: it succeeded with the target before, and has run something else since.
func TestStackThatFailedWithARevertedRevisionGetsATurn(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	failed := f.turns()[0]
	fail(failed, "b")
	failed.Spec.Suspend = true
	f.offers("a")
	f.Expect(f.last.complete).To(BeTrue())
	failed.Spec.Suspend = false
	f.decide()
	f.Expect(f.turns()).To(ConsistOf(failed))
	f.Expect(waves.Release(failed, f.rollout, revision("a"), revision("a").Digest, nil).Released).To(BeTrue())
}

// TestStackThatHasTheTargetStaysDone: that it is not ready for another reason keeps nobody waiting, also not when another Stack joins its wave.
func TestStackThatHasTheTargetStaysDone(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	f.finish("b")
	unready(f.stacks[0])
	f.stacks[0].Spec.Approval = &pulumiv1.ApprovalPolicy{}
	f.add("joined", true)
	f.events = nil
	for range 3 {
		f.decide()
		f.Expect(f.turns()).NotTo(ContainElement(f.stacks[0]))
	}
	f.finish("b")
	f.Expect(f.last.complete).To(BeTrue())
	f.Expect(f.events).To(ConsistOf(eventWaveComplete), "nothing new about the revision")
}

// TestTurnLastsUntilTheStackIsReady, also when its plan is carried out.
func TestTurnLastsUntilTheStackIsReady(t *testing.T) {
	f := approving(t)
	f.offers("b")
	f.finish("b")
	stack := f.stacks[3]
	hasPlan(stack, "b", pulumiv1.PlanApproved)
	f.decide()
	f.Expect(f.turns()).To(ConsistOf(stack))
	f.ends(stack, "b")
	unready(stack)
	stack.Status.Plan.State = pulumiv1.PlanApplied
	f.decide()
	f.Expect(f.turns()).To(ConsistOf(stack))
	ready(stack)
	f.decide()
	f.Expect(f.turns()).To(BeEmpty())
}

// TestUpdatesOfAWaveThatSoaksNeedNoOtherCheckForDrift: otherwise resyncs at a shorter interval would let it soak forever.
func TestUpdatesOfAWaveThatSoaksNeedNoOtherCheckForDrift(t *testing.T) {
	f := looking(t)
	for _, stack := range f.stacks[:3] {
		looks(stack, "")
	}
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
	left := f.last.after
	f.now = f.now.Add(time.Minute)
	f.stacks[0].Status.LastUpdate.Name = "resync"
	f.decide()
	f.Expect(f.turns()).To(BeEmpty())
	f.Expect(f.last.after).To(Equal(left - time.Minute))
	looks(f.stacks[0], "drift")
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "drift that is found counts")
}

func TestEditOfALimitCountsAtOnce(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Stacks, f.rollout.Spec.Waves[0].Limit = nil, number(2)
	f.offers("b")
	f.Expect(f.turns()).To(HaveLen(2))
	f.rollout.Spec.Waves[0].Limit = percent("50%")
	f.decide()
	f.Expect(f.turns()).To(HaveLen(4))
	f.add("new", false)
	f.decide()
	f.Expect(f.rollout.Status.Waves[0].Stacks).To(BeNumerically("<=", 5), "Stacks that come and go change nothing")
}

// TestTurnThatCannotBeUsedIsTakenBack: it would keep a place, and count as a failure after its timeout.
func TestTurnThatCannotBeUsedIsTakenBack(t *testing.T) {
	t.Run("window", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		for _, stack := range f.stacks[:2] {
			stack.Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowDeny, time.Hour, 9*time.Hour)}
		}
		f.stacks[2].Spec.Suspend = true
		f.offers("b")
		f.Expect(f.turns()).To(HaveLen(1))
		f.now = noon.Add(time.Hour)
		f.decide()
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.last.message).To(Equal("wave canary waits: 2 of its Stacks wait for their own windows"))
		f.now = noon.Add(8 * time.Hour)
		f.decide()
		f.Expect(f.last.failed).To(BeFalse(), "nobody took too long")
		f.now = noon.Add(9 * time.Hour)
		f.decide()
		begun := f.turns()[0]
		begun.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{}
		begun.Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowDeny, time.Hour, 99*time.Hour)}
		begun.Generation++
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(begun), "what runs is finished")
	})
	t.Run("dependency", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.MaxConcurrent = number(1)
		canary, dependent := f.stacks[0], f.stacks[3]
		dependent.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: canary.Name}}
		for _, stack := range f.stacks {
			stack.Spec.Suspend = stack != dependent
		}
		f.offers("b")
		f.Expect(f.turns()).To(ConsistOf(dependent), "a suspended Stack is not waited for")
		canary.Spec.Suspend = false
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(canary))
		succeed(canary, "b")
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(dependent))
	})
	t.Run("plan", func(t *testing.T) {
		f := approving(t)
		f.offers("b")
		f.finish("b")
		hasPlan(f.stacks[3], "b", pulumiv1.PlanApproved)
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(f.stacks[3]))
		hasPlan(f.stacks[3], "b", pulumiv1.PlanPending) // the approved one was out of date
		f.decide()
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.rollout.Status.Plans).To(ContainElement("team/s3"))
	})
}

// staysHalted expects that the StackRollout is halted, and stays so when a Stack joins the first wave, which gets no turn.
func (f *fleet) staysHalted() {
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	joined := f.add("joined", true)
	for range 3 {
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
		f.Expect(f.turns()).NotTo(ContainElement(joined))
	}
}

// TestHaltedRolloutStaysHaltedWhenAStackJoins: a Stack that joins an earlier wave must not get what fails in a later one.
func TestHaltedRolloutStaysHaltedWhenAStackJoins(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	for _, stack := range f.turns() {
		f.ends(stack, "b")
	}
	f.decide()
	fail(f.turns()[0], "b")
	f.decide()
	f.staysHalted()
}

func TestCheckThatHaltsGoesOnToDoSoWhenAStackJoins(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[1].Check = "stack.status.outputs.?healthy.orValue(true) == true"
	f.stacks[7].Spec.ShareOutputs = []pulumiv1.OutputShare{{Namespaces: []string{"plat*"}, Outputs: []string{"healthy"}}}
	reports(f.stacks[7], "healthy", "false")
	f.offers("b")
	f.finish("b")
	f.staysHalted()
}

func TestVerdictIsAnnouncedWhateverCameBetween(t *testing.T) {
	t.Run("mended", func(t *testing.T) {
		f := soaking(t)
		fail(f.stacks[0], "b")
		f.decide()
		f.ends(f.stacks[0], "b")
		f.decide()
		f.now = f.now.Add(time.Hour)
		f.decide()
		f.finish("b")
		f.Expect(f.events[len(f.events)-1]).To(Equal(autov1alpha1.RolloutCompleteReason))
		f.events = nil
		fail(f.stacks[0], "b")
		f.decide()
		f.ends(f.stacks[0], "b")
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
		f.now = f.now.Add(time.Hour)
		f.decide()
		f.Expect(f.events).To(ContainElements(autov1alpha1.RolloutHaltedReason, autov1alpha1.RolloutCompleteReason))
	})
	t.Run("rejected while the source is gone", func(t *testing.T) {
		f := newFleet(t)
		f.offers("b")
		f.offer, f.problem = nil, &source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "gone", Watched: true}
		f.approve(autov1alpha1.ApprovalReject, "", "b")
		f.decide()
		f.decide()
		f.Expect(f.events).To(Equal([]string{eventStarted, autov1alpha1.RevisionRejectedReason}))
	})
}

func TestStackThatSucceedsAtASecondAttemptSoaks(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
	f.offers("b")
	succeed(f.stacks[0], "b")
	succeed(f.stacks[1], "b")
	fail(f.stacks[2], "b")
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	f.Expect(f.turns()).To(BeEmpty())
	f.now = noon.Add(3 * time.Hour)
	succeed(f.stacks[2], "b") // it is tried again without another turn
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
	f.Expect(f.last.after).To(Equal(time.Hour))
	f.now = noon.Add(4 * time.Hour)
	f.decide()
	f.Expect(f.turns()).To(HaveLen(5))
}

func TestFailureCountsAfterTheStatusWasLost(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	f.rollout.Status = autov1alpha1.StackRolloutStatus{}
	f.decide()
	f.offers("c")
	for _, stack := range f.stacks[:3] {
		fail(stack, "c")
	}
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "that they succeeded before is not known any longer")
	f.Expect(f.turns()).To(BeEmpty())
}
