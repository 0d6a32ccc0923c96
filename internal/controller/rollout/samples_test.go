package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// newSampledFleet returns a fleet of ten Stacks, one of which tries each target for an hour.
func newSampledFleet(t *testing.T) *fleet {
	f := newFleet(t)
	f.rollout.Spec.Waves = []autov1alpha1.RolloutWave{{Name: "early", Limit: percent("10%"), Soak: &metav1.Duration{Duration: time.Hour}}, {Name: "rest"}}
	f.stacks = nil
	for i := range 10 {
		f.add(fmt.Sprintf("s%d", i), false)
	}
	f.decide()
	f.now = noon.Add(24 * time.Hour)
	return f
}

// leave are the ways in which a Stack does not take part.
var leave = map[string]func(*pulumiv1.Stack){
	"suspended":     func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true },
	"previewed":     func(stack *pulumiv1.Stack) { stack.Spec.Preview = true },
	"being deleted": func(stack *pulumiv1.Stack) { stack.DeletionTimestamp = &metav1.Time{Time: noon} },
}

func TestWaveWithALimitTriesTheTarget(t *testing.T) {
	for name, leaves := range leave {
		t.Run(name+"-before", func(t *testing.T) {
			for _, target := range []string{"b", "c", "d", "e"} {
				f := newSampledFleet(t)
				for _, stack := range f.stacks[:9] {
					leaves(stack)
				}
				f.offers(target)
				f.Expect(f.turns()).To(ConsistOf(f.stacks[9]), "the only one that takes part")
				f.Expect(f.rollout.Status.Waves[0].Stacks - f.rollout.Status.Waves[0].LeftOut).To(BeEquivalentTo(1))
				f.finish(target)
				f.Expect(f.state("early")).To(Equal(autov1alpha1.RolloutWaveSoaking))
			}
		})
		t.Run(name+"-after-it-was-chosen", func(t *testing.T) {
			f := newSampledFleet(t)
			f.offers("b")
			f.Expect(f.turns()).To(HaveLen(1))
			first := f.turns()[0]
			leaves(first)
			f.decide()
			f.Expect(f.turns()).To(And(HaveLen(1), Not(ContainElement(first))), "another one tries it")
			f.finish("b")
			f.Expect(f.state("early")).To(Equal(autov1alpha1.RolloutWaveSoaking))
			f.Expect(f.rollout.Status.Done).To(Equal("1/9"))
		})
		t.Run(name+"-after-it-was-updated", func(t *testing.T) {
			f := newSampledFleet(t)
			f.offers("b")
			first := f.turns()[0]
			succeed(first, "b")
			f.decide()
			leaves(first)
			f.decide()
			f.Expect(f.turns()).To(BeEmpty(), "it has tried it")
			f.now = f.now.Add(2 * time.Hour)
			f.decide()
			f.Expect(f.turns()).To(HaveLen(9))
		})
	}
	t.Run("deleted", func(t *testing.T) {
		f := newSampledFleet(t)
		f.offers("b")
		first := f.turns()[0]
		succeed(first, "b")
		f.decide()
		f.Expect(f.state("early")).To(Equal(autov1alpha1.RolloutWaveSoaking))
		f.without(first)
		f.decide()
		f.Expect(f.turns()).To(BeEmpty(), "it soaks on")
		f.offers("c")
		f.without(f.turns()[0])
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1), "one that is gone before it was updated has tried nothing")
	})
	t.Run("broken-before", func(t *testing.T) {
		f := newSampledFleet(t)
		f.rollout.Spec.Waves[0].Limit = number(1)
		f.offers("b")
		first := f.turns()[0]
		first.Status.LastUpdate.LastSuccessfulCommit, first.Status.LastAppliedRevision = revision("0").Digest, revision("0").Revision
		fail(first, "b")
		f.decide()
		f.Expect(f.turns()).To(And(HaveLen(1), Not(ContainElement(first))), "its failure says nothing about the target")
		f.Expect(f.rollout.Status.Waves[0].BrokenBefore).To(BeEquivalentTo(1))
		f.finish("b")
		f.Expect(f.state("early")).To(Equal(autov1alpha1.RolloutWaveSoaking))
	})
	t.Run("all-broken-before", func(t *testing.T) {
		f := newSampledFleet(t)
		f.offers("b")
		for range f.stacks {
			for _, stack := range f.turns() {
				stack.Status.LastUpdate.LastSuccessfulCommit, stack.Status.LastAppliedRevision = revision("0").Digest, revision("0").Revision
				fail(stack, "b")
			}
			f.decide()
		}
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutCompleteReason))
		f.Expect(f.rollout.Status.Waves[0].BrokenBefore).To(BeEquivalentTo(10))
	})
	t.Run("unchanged", func(t *testing.T) {
		f := newSampledFleet(t)
		f.rollout.Spec.Waves[0].Limit = number(1)
		f.offers("b")
		changed := slices.IndexFunc(f.stacks, func(stack *pulumiv1.Stack) bool { return stack != f.turns()[0] })
		for i, stack := range f.stacks {
			if i != changed && stack != f.stacks[9] {
				unchanged(stack, "b")
				f.decide()
			}
		}
		f.Expect(f.turns()).To(HaveLen(1))
		f.Expect(f.turns()[0]).To(BeElementOf(f.stacks[changed], f.stacks[9]), "the commit changes something for two, and one of them tries it")
		for range 3 {
			before := f.rollout.Status.DeepCopy()
			f.decide()
			f.Expect(&f.rollout.Status).To(Equal(before), "the choice stays")
		}
		f.finish("b")
		f.Expect(f.state("early")).To(Equal(autov1alpha1.RolloutWaveSoaking))
		f.Expect(f.state("rest")).NotTo(Equal(autov1alpha1.RolloutWaveComplete), "and not the other one")
	})
	t.Run("all-unchanged", func(t *testing.T) {
		f := newSampledFleet(t)
		f.offers("b")
		for _, stack := range f.stacks {
			unchanged(stack, "b")
			f.decide()
		}
		f.Expect(f.turns()).To(BeEmpty())
		f.Expect(f.last.complete).To(BeTrue())
	})
	t.Run("all-suspended", func(t *testing.T) {
		f := newSampledFleet(t)
		for _, stack := range f.stacks {
			stack.Spec.Suspend = true
		}
		f.offers("b")
		f.Expect(f.last.complete).To(BeTrue())
		f.stacks[3].Spec.Suspend = false
		f.decide()
		f.Expect(f.turns()).To(ConsistOf(f.stacks[3]))
	})
}

func TestPercentagesCountStacksThatTakePart(t *testing.T) {
	for name, leaves := range leave {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			for i := range 17 {
				stack := f.add(fmt.Sprintf("canary-%d", i), true)
				if i < 15 {
					leaves(stack)
				}
			}
			f.rollout.Spec.MaxConcurrent, f.rollout.Spec.MaxFailures = percent("50%"), percent("25%")
			f.offers("b") // of 20 Stacks of wave canary, 5 take part
			f.Expect(f.turns()).To(HaveLen(3), "half of them")
			for _, stack := range f.turns()[:2] {
				fail(stack, "b")
			}
			f.decide()
			f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
			f.Expect(f.last.message).To(ContainSubstring("maxFailures is 1"))
		})
	}
}

// without removes the Stack.
func (f *fleet) without(gone *pulumiv1.Stack) {
	f.stacks = slices.DeleteFunc(slices.Clone(f.stacks), func(stack *pulumiv1.Stack) bool { return stack == gone })
}
