package fairqueue

import (
	"container/list"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
)

// takeAll takes until nothing may be taken any longer.
func takeAll[T any](s *shares[T]) (taken []T) {
	for item, ok := s.take(); ok; item, ok = s.take() {
		taken = append(taken, item)
	}
	return taken
}

func TestNamespaceHoldsHalfOfWhatOthersLeave(t *testing.T) {
	for slots, want := range map[int][]int{1: {1, 0}, 2: {1, 1, 0}, 8: {4, 2, 1, 1, 0}, 16: {8, 4, 2, 1, 1, 0}} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			g := NewWithT(t)
			s := newShares[int](slots, MayTake)
			for i, held := range want {
				for item := range 100 {
					s.push(fmt.Sprint(i), item)
				}
				g.Expect(takeAll(s)).To(HaveLen(held), "namespace %d", i)
			}
		})
	}
}

func TestNamespacesTakeTurnsAndEachIsInOrder(t *testing.T) {
	g := NewWithT(t)
	s := newShares[string](1, MayTake)
	for i := range 3 {
		for _, namespace := range []string{"a", "b"}[:min(i+1, 2)] {
			s.push(namespace, fmt.Sprint(namespace, i))
		}
	}
	var taken []string
	for item, ok := s.take(); ok; item, ok = s.take() {
		taken = append(taken, item)
		s.release(item[:1])
	}
	g.Expect(taken).To(Equal([]string{"a0", "b1", "a1", "b2", "a2"}))
	g.Expect(s.held).To(BeEmpty())
	g.Expect(s.waiting).To(BeEmpty())
	g.Expect(s.turns.Len()).To(BeZero())
}

// FuzzSharesAreLikeTheirModel plays pushes, takes, releases and removals, and compares the results with a simple model of the rules of the
// package.
func FuzzSharesAreLikeTheirModel(f *testing.F) {
	f.Add(uint8(4), []byte("aabbccTTTTraTrbTxaT"))
	f.Add(uint8(1), []byte("abcTTraTxbTrcT"))
	f.Add(uint8(6), []byte("aaaaaabbbbbbTTTTTTraTTrbTT"))
	f.Fuzz(func(t *testing.T, slots uint8, script []byte) {
		g := NewWithT(t)
		total := int(slots%17) + 1
		s := newShares[int](total, MayTake)
		waiting, held, places := map[string][]int{}, map[string]int{}, map[int]*list.Element{}
		free := total
		for step := 0; step < len(script); step++ {
			namespace := ""
			if step+1 < len(script) {
				namespace = string(script[step+1])
			}
			switch command := script[step]; command {
			case 'T':
				item, ok := s.take()
				if !ok {
					for namespace := range waiting {
						g.Expect(held[namespace] < free).To(BeFalse(), "namespace %s may have a slot", namespace)
					}
					break
				}
				var owner string
				for namespace, items := range waiting {
					if items[0] == item {
						owner = namespace
					}
				}
				g.Expect(owner).NotTo(BeEmpty(), "what is taken is the oldest of a namespace")
				g.Expect(held[owner]).To(BeNumerically("<", free))
				if waiting[owner] = waiting[owner][1:]; len(waiting[owner]) == 0 {
					delete(waiting, owner)
				}
				held[owner]++
				free--
			case 'r':
				step++
				if held[namespace] > 0 {
					s.release(namespace)
					held[namespace]--
					free++
				}
			case 'x':
				step++
				if items := waiting[namespace]; len(items) > 0 {
					last := len(items) - 1
					s.remove(namespace, places[items[last]])
					if waiting[namespace] = items[:last]; last == 0 {
						delete(waiting, namespace)
					}
				}
			default:
				namespace := string(command)
				places[step] = s.push(namespace, step)
				waiting[namespace] = append(waiting[namespace], step)
			}
			count := 0
			for _, items := range waiting {
				count += len(items)
			}
			g.Expect(s.len).To(Equal(count))
			g.Expect(s.free).To(Equal(free))
			g.Expect(s.turns.Len()).To(Equal(len(waiting)))
			g.Expect(free).To(BeNumerically(">=", 0))
		}
	})
}
