package pod

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func TestFewPodsAreReplacedAtOnceAndTheOthersGetTheirTurn(t *testing.T) {
	g := NewWithT(t)
	var woken []types.NamespacedName
	r := newRollout(func(key types.NamespacedName) { woken = append(woken, key) })
	key := func(i int) types.NamespacedName { return types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)} }
	for i := range maxRollingOfNamespace {
		g.Expect(r.begin(key(i))).To(BeTrue())
		g.Expect(r.begin(key(i))).To(BeTrue(), "it has its place already")
	}
	g.Expect(r.begin(key(100))).To(BeFalse())
	g.Expect(r.begin(key(101))).To(BeFalse())
	r.end(key(200))
	g.Expect(woken).To(BeEmpty(), "there is no room yet")

	r.end(key(0))
	g.Expect(woken).To(HaveLen(1))
	g.Expect(r.begin(woken[0])).To(BeTrue())
	r.end(key(1))
	g.Expect(woken).To(ConsistOf(key(100), key(101)))
	r.end(woken[0])
	g.Expect(woken).To(HaveLen(2), "nobody waits any longer")
}

func TestPodsOfOneNamespaceThatDoNotBecomeReadyDoNotHoldUpOthers(t *testing.T) {
	g := NewWithT(t)
	var woken []types.NamespacedName
	r := newRollout(func(key types.NamespacedName) { woken = append(woken, key) })
	for i := range 1000 {
		begun := r.begin(types.NamespacedName{Namespace: "stuck", Name: fmt.Sprint(i)})
		g.Expect(begun).To(Equal(i < maxRollingOfNamespace))
	}
	for _, namespace := range []string{"a", "b", "c"} {
		for i := range 2 {
			key := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}
			g.Expect(r.begin(key)).To(BeTrue())
			r.end(key)
		}
	}
	g.Expect(woken).To(BeEmpty(), "what is stuck has its share")
}

func TestPodsThatDoNotBecomeReadyHoldUpTheOthersForATimeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var woken atomic.Int32
		r := newRollout(func(types.NamespacedName) { woken.Add(1) })
		for i := range maxRollingOfNamespace + 3 {
			r.begin(types.NamespacedName{Name: fmt.Sprint(i)})
		}
		time.Sleep(rolloutTimeout - 1)
		synctest.Wait()
		g.Expect(woken.Load()).To(BeZero())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		g.Expect(woken.Load()).To(BeEquivalentTo(3))
		g.Expect(r.rolling).To(HaveLen(3), "they have a time, too, also when they do not begin")
	})
}
