package events

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
)

// bodies pops everything that is queued.
func bodies(q *queue) (popped []string) {
	for item, ok := q.tryPop(); ok; item, ok = q.tryPop() {
		popped = append(popped, string(item.body))
	}
	return popped
}

func TestFloodOfOneNamespaceDropsItsOwnEventsOnly(t *testing.T) {
	g := NewWithT(t)
	q := newQueue(1000)
	q.push(notification{namespace: "team", body: []byte("team 1")})
	dropped := 0
	for i := range 10_000 {
		dropped += q.push(notification{namespace: "evil", body: fmt.Appendf(nil, "evil %d", i)})
	}
	g.Expect(dropped).To(BeNumerically(">", 9000))
	g.Expect(q.push(notification{namespace: "team", body: []byte("team 2")})).To(BeNumerically("<=", 1))
	popped := bodies(q)
	g.Expect(popped[0]).To(Equal("team 1"))
	g.Expect(popped[2]).To(Equal("team 2"), "its turn comes after each of the other namespace's")
	g.Expect(popped[len(popped)-1]).To(Equal("evil 9999"), "the newest stay")
	g.Expect(q.bytes).To(BeZero())
	g.Expect(q.backlogs).To(BeEmpty())
}

func TestEventThatIsLargerThanTheQueueIsDropped(t *testing.T) {
	g := NewWithT(t)
	q := newQueue(3)
	g.Expect(q.push(notification{namespace: "team", body: []byte("large")})).To(Equal(1))
	g.Expect(bodies(q)).To(BeEmpty())
	g.Expect(q.bytes).To(BeZero())
}
