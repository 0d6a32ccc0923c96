package pod

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func TestFewPodsAreReplacedAtOnceAndTheOthersGetTheirTurn(t *testing.T) {
	g := NewWithT(t)
	var woken []types.NamespacedName
	r := newRollout(func(key types.NamespacedName) { woken = append(woken, key) })
	key := func(i int) types.NamespacedName { return types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)} }
	for i := range maxRolling {
		g.Expect(r.begin(key(i), noon)).To(BeTrue())
		g.Expect(r.begin(key(i), noon)).To(BeTrue(), "it has its place already")
	}
	g.Expect(r.begin(key(100), noon)).To(BeFalse())
	g.Expect(r.begin(key(101), noon)).To(BeFalse())
	r.end(key(200))
	g.Expect(woken).To(BeEmpty(), "there is no room yet")

	r.end(key(0))
	g.Expect(woken).To(HaveLen(1))
	g.Expect(r.begin(woken[0], noon)).To(BeTrue())
	r.end(key(1))
	g.Expect(woken).To(ConsistOf(key(100), key(101)))
	r.end(woken[0])
	g.Expect(r.waiting).To(BeEmpty())
}

func TestPodsThatDoNotBecomeReadyHoldUpTheOthersForATimeOnly(t *testing.T) {
	g := NewWithT(t)
	var woken int
	r := newRollout(func(types.NamespacedName) { woken++ })
	for i := range maxRolling + 3 {
		r.begin(types.NamespacedName{Name: fmt.Sprint(i)}, noon)
	}
	r.expire(noon.Add(rollingPatience - 1))
	g.Expect(woken).To(BeZero())
	r.expire(noon.Add(rollingPatience))
	g.Expect(woken).To(Equal(3))
	g.Expect(r.rolling).To(BeEmpty())
}
