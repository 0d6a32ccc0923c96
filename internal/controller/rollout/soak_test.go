package rollout

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// TestWaveGoesOnSoakingWhenTheWavesAreEdited: the next one would begin hours early.
func TestWaveGoesOnSoakingWhenTheWavesAreEdited(t *testing.T) {
	edits := map[string]func(*fleet){
		"renamed": func(f *fleet) { f.rollout.Spec.Waves[0].Name = "canaries" },
		"split": func(f *fleet) {
			wave := f.rollout.Spec.Waves[0]
			wave.Name = "one"
			one := wave
			one.Name, one.Limit = "other", number(1)
			f.rollout.Spec.Waves = slices.Insert(f.rollout.Spec.Waves[1:], 0, one, wave)
		},
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			f := soaking(t)
			f.now = noon.Add(10 * time.Minute)
			edit(f)
			f.decide()
			f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
			f.Expect(f.last.after).To(Equal(50 * time.Minute))
			f.Expect(f.turns()).To(BeEmpty())
			f.now = noon.Add(time.Hour)
			f.decide()
			f.Expect(f.turns()).To(HaveLen(5))
		})
		t.Run(name+" after a commit that changed nothing", func(t *testing.T) {
			f := soaking(t)
			for _, stack := range f.stacks[:3] {
				unchanged(stack, "c")
			}
			edit(f)
			f.now = noon.Add(10 * time.Minute)
			f.offers("c")
			f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
			f.Expect(f.last.after).To(Equal(50 * time.Minute))
		})
	}
	t.Run("another one is added", func(t *testing.T) {
		f := soaking(t)
		f.rollout.Spec.Waves[1].MaxConcurrent = number(1)
		f.now = noon.Add(time.Hour)
		f.decide()
		pilot := f.turns()[0]
		f.ends(pilot, "b")
		f.rollout.Spec.Suspend = true // so that no other Stack follows
		f.decide()
		f.rollout.Spec.Suspend = false
		f.now = f.now.Add(10 * time.Minute)
		pilot.Labels = map[string]string{"tier": "early"}
		early := autov1alpha1.RolloutWave{Name: "early", Stacks: &metav1.LabelSelector{MatchLabels: pilot.Labels}, Soak: &metav1.Duration{Duration: time.Hour}}
		f.rollout.Spec.Waves = slices.Insert(f.rollout.Spec.Waves, 1, early)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
		f.Expect(f.last.after).To(Equal(50 * time.Minute))
		f.Expect(f.turns()).To(BeEmpty())
		f.now = f.now.Add(50 * time.Minute)
		f.decide()
		f.Expect(f.turns()).To(HaveLen(1))
	})
}

// TestStackThatWasFasterThanItsRolloutSoaks: it failed with what is the same for it in the next commit, and is tried again before that is the target.
func TestStackThatWasFasterThanItsRolloutSoaks(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
	f.offers("b")
	f.now = f.now.Add(2 * time.Hour)
	for _, stack := range f.stacks[:3] {
		f.ends(stack, "c")
	}
	f.offers("c")
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
	f.Expect(f.last.after).To(Equal(time.Hour))
}

// TestStackThatIsEditedSoaksWithoutTheStatus: it has the target, and is not ready just then.
func TestStackThatIsEditedSoaksWithoutTheStatus(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
	f.offers("b")
	f.finish("b")
	for _, stack := range f.stacks[:3] {
		stack.Generation++
	}
	f.rollout.Status = autov1alpha1.StackRolloutStatus{}
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
}

// TestUpdateUnderAnEarlierNameOfTheTargetIsOne: a commit that changes nothing in the artifact comes while Stacks are updated to the one before.
func TestUpdateUnderAnEarlierNameOfTheTargetIsOne(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Soak, f.rollout.Spec.Waves[0].NoDrift = &metav1.Duration{Duration: time.Hour}, true
	f.offers("b")
	for i := range 2 * maxEarlier {
		f.offer = again("b", i%5)
		f.decide()
	}
	f.Expect(f.rollout.Status.Earlier).To(HaveLen(maxEarlier + 1))
	f.Expect(f.rollout.Status.Earlier).To(ContainElement(revision("a")), "which Stacks have")
	canaries := f.turns()
	for _, stack := range canaries {
		f.ends(stack, "b")
		stack.Status.LastUpdate.Name, stack.Status.LastUpdate.Revision = "update", again("b", 3).Revision
	}
	f.decide()
	f.Expect(f.last.message).To(Equal("wave canary waits: 3 of its Stacks look for drift"))
	for _, stack := range canaries {
		looks(stack, "")
	}
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason))
	f.Expect(f.last.after).To(Equal(time.Hour))

	// After a commit and its revert, which has the same content, nobody knows when it was run.
	f.offers("c")
	f.offers("b")
	f.Expect(f.rollout.Status.Waves[0].Updated).To(BeZero())
}
