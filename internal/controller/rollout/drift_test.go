package rollout

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// looks makes the Stack report what a check for drift after its last update has found; nothing when message is empty.
func looks(stack *pulumiv1.Stack, message string) {
	drift := &pulumiv1.DriftStatus{CheckedUpdate: stack.Status.LastUpdate.Name, LastCheckTime: new(metav1.NewTime(noon))}
	condition := metav1.Condition{Type: pulumiv1.DriftedCondition, Status: metav1.ConditionFalse, Message: message}
	if message != "" {
		drift.Digest, condition.Status = "sha256:1", metav1.ConditionTrue
	}
	stack.Status.Drift = drift
	apimeta.SetStatusCondition(&stack.Status.Conditions, condition)
}

// looking returns a fleet whose canaries were updated to revision b and have to look for drift.
func looking(t *testing.T) *fleet {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].NoDrift = true
	f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
	f.offers("b")
	for _, stack := range f.turns() {
		f.Expect(waves.ChecksDrift(stack, f.rollout)).To(BeFalse(), "it is not updated yet")
		succeed(stack, "b")
		stack.Status.LastUpdate.Name = stack.Name + "-b"
		f.Expect(waves.ChecksDrift(stack, f.rollout)).To(BeTrue())
	}
	f.now = noon.Add(time.Minute)
	f.decide()
	return f
}

func TestWaveWithoutDriftWaitsForItsChecks(t *testing.T) {
	f := looking(t)
	f.Expect(f.turns()).To(HaveLen(3), "a turn lasts until the Stack has looked for drift")
	f.Expect(f.last.message).To(Equal("wave canary waits: 3 of its Stacks look for drift"))
	f.Expect(f.rollout.Status.Waves[0]).To(And(HaveField("Running", int32(3)), HaveField("Updated", int32(0))))
	f.Expect(f.last.after).To(Equal(waves.DefaultTimeout-time.Minute), "time brings it back")

	f.now = noon.Add(2 * time.Minute)
	looks(f.stacks[0], "")
	f.decide()
	f.Expect(f.turns()).To(HaveLen(2))
	f.Expect(f.rollout.Status.Done).To(Equal("1/8"))

	// Drift that was seen once has to be confirmed.
	looks(f.stacks[1], "")
	f.stacks[1].Status.Drift.Unconfirmed = "sha256:1"
	f.decide()
	f.Expect(f.turns()).To(HaveLen(2))
	looks(f.stacks[1], "1 resource was changed outside of Pulumi: "+strings.Repeat("x", 500))
	looks(f.stacks[2], "")
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	f.Expect(f.last.stalled).To(BeTrue(), "somebody has to look at it")
	f.Expect(f.rollout.Status.Failing).To(ConsistOf(HaveField("Message", HavePrefix("1 resource was changed outside of Pulumi"))))
	f.Expect(len(f.rollout.Status.Failing[0].Message)).To(BeNumerically("<=", 200))
	f.Expect(f.turns()).To(ConsistOf(f.stacks[1]), "it goes on looking")

	// It goes on by itself, and soaks from then on.
	f.now = noon.Add(time.Hour)
	looks(f.stacks[1], "")
	f.decide()
	f.Expect(f.turns()).To(BeEmpty())
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
	f.Expect(f.last.after).To(Equal(time.Hour))
	f.now = noon.Add(2 * time.Hour)
	f.decide()
	f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveComplete))
	f.Expect(f.turns()).To(HaveLen(5))

	// What happens after the wave is complete does not open it again.
	looks(f.stacks[0], "drift")
	f.stacks[1].Status.LastUpdate.Name = "edited"
	f.decide()
	f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveComplete))
	f.finish("b")
	f.Expect(f.last.complete).To(BeTrue())
}

func TestCheckForDriftThatFailsCounts(t *testing.T) {
	f := looking(t)
	looks(f.stacks[0], "cannot look for changes")
	f.stacks[0].Status.Drift.Digest, f.stacks[0].Status.Drift.Failures = "", 1
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	f.Expect(f.last.stalled).To(BeFalse(), "it is tried again")
	f.Expect(f.turns()).To(HaveLen(3))
	f.now = noon.Add(waves.DefaultTimeout)
	f.decide()
	f.Expect(f.rollout.Status.Failing).To(ContainElement(HaveField("Message", "not checked for drift within 2h0m0s")))
	f.Expect(f.turns()).To(HaveLen(3), "it may still end")
}

func TestChecksForDriftSurviveALostStatus(t *testing.T) {
	f := looking(t)
	looks(f.stacks[0], "")
	looks(f.stacks[1], "drift")
	f.rollout.Status = autov1alpha1.StackRolloutStatus{}
	f.decide()
	f.Expect(f.turns()).To(ConsistOf(f.stacks[1]), "it looks again, and the other one waits")
	looks(f.stacks[1], "")
	f.decide()
	f.Expect(f.turns()).To(ConsistOf(f.stacks[2]))
	f.Expect(waves.ChecksDrift(f.stacks[2], f.rollout)).To(BeTrue())
	f.Expect(f.last.after).To(BeNumerically("<=", waves.DefaultTimeout))
	looks(f.stacks[2], "")
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
}

func TestStackThatDidNotChangeLooksForNoDrift(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].NoDrift = true
	f.offer = new(revision("b"))
	for _, stack := range f.stacks[:3] {
		unchanged(stack, "b")
		stack.Status.LastUpdate.LastAttemptedCommit, stack.Status.LastUpdate.LastSuccessfulCommit = revision("b").Digest, revision("b").Digest
	}
	f.decide()
	f.Expect(f.state("canary")).To(Equal(autov1alpha1.RolloutWaveComplete))
	f.Expect(f.turns()).To(HaveLen(5))
	f.Expect(f.rollout.Status.Turns).To(HaveEach(HaveField("CheckDrift", false)))
}

func TestWhatAStackFindsWakesItsRollout(t *testing.T) {
	f := looking(t)
	for name, change := range map[string]func(*pulumiv1.Stack){
		"nothing": func(stack *pulumiv1.Stack) { looks(stack, "") },
		"drift":   func(stack *pulumiv1.Stack) { looks(stack, "drift") },
		"after another update": func(stack *pulumiv1.Stack) {
			looks(stack, "")
			stack.Status.Drift.CheckedUpdate = "other"
		},
	} {
		before := f.stacks[0]
		after := before.DeepCopy()
		change(after)
		after.Status.Conditions = before.Status.Conditions
		f.Expect(concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue(), name)
	}
	kept, err := CacheTransform(func() *pulumiv1.Stack {
		stack := f.stacks[0].DeepCopy()
		looks(stack, "drift")
		stack.Status.Drift.Resources = []pulumiv1.DriftedResource{{URN: "urn"}}
		return stack
	}())
	f.Expect(err).NotTo(HaveOccurred())
	member := waves.Observe(kept.(*pulumiv1.Stack), f.rollout, &f.rollout.Status)
	f.Expect(member.Drift).To(Equal(&waves.Drift{Problem: "drift", Found: true}), "the controller of another shard sees it, too")
	f.Expect(kept.(*pulumiv1.Stack).Status.Drift.Resources).To(BeEmpty())
	f.Expect(member.NamespacedName).To(Equal(types.NamespacedName{Namespace: "team", Name: "s0"}))
}
