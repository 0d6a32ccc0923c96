package fairqueue

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

// namespaceOf returns the namespace of an item "namespace/name".
func namespaceOf(item string) string {
	namespace, _, _ := strings.Cut(item, "/")
	return namespace
}

// get gets an item that must be there.
func get(g *WithT, q *Queue[string]) string {
	item, shutdown := q.Get()
	g.Expect(shutdown).To(BeFalse())
	return item
}

func TestHangingItemsLeaveSlotsToOthers(t *testing.T) {
	g := NewWithT(t)
	q := New("", 8, namespaceOf)
	worked := make(chan string)
	for range 8 {
		go func() {
			for {
				item, shutdown := q.Get()
				if shutdown {
					return
				}
				worked <- item
				if namespaceOf(item) != "hanging" {
					q.Done(item)
				}
			}
		}()
	}
	t.Cleanup(q.ShutDown)
	for i := range 100 {
		q.Add(fmt.Sprint("hanging/", i))
	}
	for range 4 {
		g.Eventually(worked).Should(Receive(HavePrefix("hanging/")))
	}
	for i := range 50 {
		q.Add(fmt.Sprint("team/", i))
	}
	for i := range 50 {
		g.Eventually(worked).Should(Receive(HavePrefix("team/")), "%d", i)
	}
	g.Consistently(worked, "20ms").ShouldNot(Receive())
	q.Done("hanging/0")
	g.Eventually(worked).Should(Receive(Equal("hanging/4")))
}

func TestSlotThatSeveralNamespacesWaitedForWakesThemAll(t *testing.T) {
	g := NewWithT(t)
	q := New("", 6, namespaceOf)
	for _, item := range []string{"a/0", "a/1", "b/0", "b/1"} {
		q.Add(item)
		get(g, q)
	}
	// Two slots are free, and a and b hold two each.
	q.Add("b/2")
	q.Add("a/2")
	got := make(chan string, 2)
	for range 2 {
		go func() {
			item, _ := q.Get()
			got <- item
		}()
	}
	g.Consistently(got, "20ms").ShouldNot(Receive())
	q.Done("a/0")
	g.Eventually(got).Should(Receive())
	g.Eventually(got).Should(Receive())
}

func TestItemIsWorkedOnByOneAndNeverForgotten(t *testing.T) {
	g := NewWithT(t)
	q := New("", 6, namespaceOf)
	const names, rounds = 40, 4000
	working, added, seen := make([]atomic.Bool, names), make([]atomic.Int64, names), make([]atomic.Int64, names)
	var workers sync.WaitGroup
	for range 9 {
		workers.Go(func() {
			for {
				item, shutdown := q.Get()
				if shutdown {
					return
				}
				var namespace, n int
				_, err := fmt.Sscanf(item, "n%d/%d", &namespace, &n)
				if err != nil || !working[n].CompareAndSwap(false, true) {
					t.Errorf("%s is worked on twice", item)
				}
				seen[n].Store(added[n].Load())
				working[n].Store(false)
				q.Done(item)
			}
		})
	}
	var adders sync.WaitGroup
	for range 4 {
		adders.Go(func() {
			for range rounds {
				n := rand.N(names)
				added[n].Add(1)
				q.Add(fmt.Sprintf("n%d/%d", n%3, n))
			}
		})
	}
	adders.Wait()
	for n := range names {
		g.Eventually(func() bool { return seen[n].Load() == added[n].Load() }).Should(BeTrue(), "item %d", n)
	}
	q.ShutDown()
	workers.Wait()
	g.Expect(q.items.held).To(BeEmpty())
}

func TestShutdownEndsWorkersThatWait(t *testing.T) {
	for name, shutDown := range map[string]func(*Queue[string]){"at once": (*Queue[string]).ShutDown, "drained": (*Queue[string]).ShutDownWithDrain} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			q := New("", 2, namespaceOf)
			q.Add("a/0")
			q.Add("a/1") // has to wait for the one before
			item := get(g, q)
			var workers sync.WaitGroup
			for range 3 {
				workers.Go(func() {
					for {
						item, shutdown := q.Get()
						if shutdown {
							return
						}
						q.Done(item)
					}
				})
			}
			ended := make(chan struct{})
			go func() {
				shutDown(q)
				workers.Wait()
				close(ended)
			}()
			g.Eventually(q.ShuttingDown).Should(BeTrue())
			q.Done(item)
			g.Eventually(ended).Should(BeClosed())
			q.Add("b/0")
			_, shutdown := q.Get()
			g.Expect(shutdown || q.Len() == 0).To(BeTrue())
		})
	}
}
