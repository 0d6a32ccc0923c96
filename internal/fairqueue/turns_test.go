package fairqueue

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func object(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: name[:1], Name: name}
}

func TestTurnsGoRoundBetweenNamespacesAndUrgentOnesComeFirstInTheirs(t *testing.T) {
	g := NewWithT(t)
	var woken []string
	turns := NewTurns(2, AllSlots, func(key types.NamespacedName) { woken = append(woken, key.Name) })
	g.Expect(turns.Ask(object("a1"), false)).To(BeZero())
	g.Expect(turns.Ask(object("a2"), false)).To(BeZero(), "one namespace may have all")
	g.Expect(turns.Ask(object("a3"), false)).To(Equal(1))
	g.Expect(turns.Ask(object("a4"), false)).To(Equal(2))
	g.Expect(turns.Ask(object("b1"), false)).To(Equal(2), "the turn of a comes first")
	g.Expect(turns.Ask(object("a4"), false)).To(Equal(3))
	g.Expect(turns.Ask(object("a5"), true)).To(Equal(1))
	g.Expect(turns.Ask(object("a6"), true)).To(Equal(3), "urgent ones are in order, too")
	g.Expect(turns.Ask(object("a4"), false)).To(Equal(5))
	g.Expect(woken).To(BeEmpty())

	turns.Leave(object("a6"))
	for _, done := range []string{"a1", "a2", "a5", "b1", "a3"} {
		turns.Leave(object(done))
	}
	g.Expect(woken).To(Equal([]string{"a5", "b1", "a3", "a4"}))
	g.Expect(turns.Ask(object("a4"), false)).To(BeZero(), "it keeps its slot")
}

func TestWorkThatGoesOnCountsAlsoBeyondTheSlots(t *testing.T) {
	g := NewWithT(t)
	turns := NewTurns(1, AllSlots, func(types.NamespacedName) {})
	turns.Hold(object("a1"))
	turns.Hold(object("a1"))
	turns.Hold(object("b1"))
	g.Expect(turns.Ask(object("a2"), false)).To(Equal(1))
	turns.Leave(object("a1"))
	turns.Leave(object("a1"))
	g.Expect(turns.Ask(object("a2"), false)).To(Equal(1))
	turns.Leave(object("b1"))
	g.Expect(turns.Ask(object("a2"), false)).To(BeZero())
}

// TestTurnsNeverExceedTheSlotsNorForgetAnybody lets many objects ask, work and leave in random order.
func TestTurnsNeverExceedTheSlotsNorForgetAnybody(t *testing.T) {
	for seed := range uint64(200) {
		g, random := NewWithT(t), rand.New(rand.NewPCG(seed, 1))
		const slots = 3
		holds := map[types.NamespacedName]bool{}
		waits := map[types.NamespacedName]bool{}
		turns := NewTurns(slots, AllSlots, func(key types.NamespacedName) {
			g.Expect(waits).To(HaveKey(key))
			delete(waits, key)
			holds[key] = true
		})
		for range 300 {
			key := object(fmt.Sprintf("%c%d", 'a'+rune(random.IntN(4)), random.IntN(8)))
			if random.IntN(3) == 0 {
				delete(waits, key)
				delete(holds, key)
				turns.Leave(key)
			} else if turns.Ask(key, random.IntN(5) == 0) == 0 {
				holds[key] = true
			} else {
				waits[key] = true
			}
			g.Expect(len(holds)).To(BeNumerically("<=", slots), "seed %d", seed)
			g.Expect(len(waits) == 0 || len(holds) == slots).To(BeTrue(), "seed %d: a slot is free while somebody waits", seed)
		}
	}
}

func TestTenantWhoseWorkHangsLeavesSlotsToOthers(t *testing.T) {
	g := NewWithT(t)
	turns := NewTurns(4, MayTake, func(types.NamespacedName) {})
	for i := range 10 {
		turns.Ask(object(fmt.Sprint("a", i)), true)
	}
	g.Expect(turns.Ask(object("a1"), true)).To(BeZero())
	g.Expect(turns.Ask(object("a2"), true)).NotTo(BeZero())
	g.Expect(turns.Ask(object("b1"), false)).To(BeZero())
}

func TestWorkBeyondTheShareOfItsNamespaceTakesNothingFromOthers(t *testing.T) {
	g := NewWithT(t)
	turns := NewTurns(4, MayTake, func(types.NamespacedName) {})
	for i := range 10 {
		turns.Hold(object(fmt.Sprint("a", i)))
	}
	g.Expect(turns.Ask(object("b1"), false)).To(BeZero())
	g.Expect(turns.Ask(object("c1"), false)).To(BeZero())
	g.Expect(turns.Ask(object("d1"), false)).NotTo(BeZero(), "a has two of four")
	for i := range 8 {
		turns.Leave(object(fmt.Sprint("a", 9-i)))
	}
	g.Expect(turns.Ask(object("d1"), false)).NotTo(BeZero(), "and has them still")
	turns.Leave(object("a0"))
	g.Expect(turns.Ask(object("d1"), false)).To(BeZero())
	for _, name := range []string{"a1", "b1", "c1", "d1"} {
		turns.Leave(object(name))
	}
	for i := range 4 {
		g.Expect(turns.Ask(object(string(rune('e'+i))), false)).To(BeZero())
	}
	g.Expect(turns.Ask(object("i1"), false)).To(Equal(1), "there are four, as before")
}
