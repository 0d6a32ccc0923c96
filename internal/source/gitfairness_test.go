package source

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// subscribeFrom subscribes an object of the namespace to a branch on a server. Nothing is polled before the next begin.
func (d *driver) subscribeFrom(namespace, host, ref string) {
	d.t.Helper()
	d.subscribeThrough("", namespace, host, ref)
}

// subscribeThrough does so through the proxy in the named Secret; empty for none.
func (d *driver) subscribeThrough(proxy, namespace, host, ref string) {
	d.t.Helper()
	source := branch(ref)
	source.URL = "https://" + host + "/apps/demo"
	if proxy != "" {
		source.Auth = &autov1alpha1.GitAuth{ProxySecretRef: &meta.LocalObjectReference{Name: proxy}}
	}
	query := queryOf(host+"-"+ref, source)
	query.Waiter = types.NamespacedName{Namespace: namespace, Name: query.Waiter.Name}
	_, _ = d.stacks.Subscribe(query)
}

// begins returns how many polls begin for each namespace.
func (d *driver) begins() map[string]int {
	d.t.Helper()
	begun, _ := d.begin()
	counts := map[string]int{}
	for _, p := range begun {
		counts[p.holder]++
	}
	return counts
}

func TestServersOfOneNamespaceThatHangDoNotDelayPollsOfAnother(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for i := range 2000 {
		d.subscribeFrom("evil", fmt.Sprintf("tarpit-%d.example", i%500), fmt.Sprint(i))
	}
	d.Expect(d.begins()).To(Equal(map[string]int{"evil": 8}))
	for i := range 20 {
		d.subscribeFrom("team", "git.example", fmt.Sprint(i))
		begun, _ := d.begin()
		d.Expect(begun).To(HaveLen(1), "the poll %d begins at once", i)
		d.poll(t.Context(), begun[0])
	}
	// Several attackers share the slots that the first one leaves.
	for i := range 3 {
		for repo := range 20 {
			d.subscribeFrom(fmt.Sprint("evil-", i), fmt.Sprintf("tarpit-%d-%d.example", i, repo), "main")
		}
	}
	d.Expect(d.begins()).To(Equal(map[string]int{"evil-0": 2, "evil-1": 2, "evil-2": 2}))
	d.subscribeFrom("team", "git.example", "one-more")
	d.Expect(d.begins()).To(Equal(map[string]int{"team": 1}))
}

func TestNamespaceLeavesASlotOfEachServerToOthers(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for i := range 1000 {
		d.subscribeFrom("evil", "git.example", fmt.Sprint("slow-", i))
	}
	d.Expect(d.begins()).To(Equal(map[string]int{"evil": maxPerHost - 1}))
	d.subscribeFrom("team", "git.example", "main")
	d.subscribeFrom("team", "git.example", "next")
	d.Expect(d.begins()).To(Equal(map[string]int{"team": 1}), "four at once is the most that a server is asked")
}

func TestServerBehindTheProxyOfANamespaceIsNotSlowForOthers(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for i := range 1000 {
		d.subscribeThrough("slow", "evil", "git.example", fmt.Sprint(i))
		d.subscribeThrough("slow", "evil-too", "git.example", fmt.Sprint(i))
	}
	d.Expect(d.begins()).To(Equal(map[string]int{"evil": maxPerHost - 1, "evil-too": maxPerHost - 1}))
	for i := range maxPerHost {
		d.subscribeFrom(fmt.Sprint("team-", i%2), "git.example", fmt.Sprint(i))
	}
	d.Expect(d.begins()).To(Equal(map[string]int{"team-0": 2, "team-1": 2}))
	d.subscribeThrough("slow", "evil", "another.example", "main")
	d.Expect(d.begins()).To(Equal(map[string]int{"evil": 1}), "another server through the same proxy")
}

func TestRefThatAnotherNamespaceHasFirstIsNotBehindWhatThatHas(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for i := range 1000 {
		d.subscribeFrom("evil", fmt.Sprintf("tarpit-%d.example", i), "main")
	}
	d.Expect(d.begins()).To(Equal(map[string]int{"evil": 8}))
	d.subscribeFrom("evil", "git.example", "main")
	d.Expect(d.begins()).To(BeEmpty())
	d.subscribeFrom("team", "git.example", "main")
	d.Expect(d.begins()).To(Equal(map[string]int{"team": 1}))
	d.Expect(d.queue.ready["evil"]).NotTo(HaveKey("git.example"), "it is polled once for both")
}

// FuzzPollQueueKeepsItsCounts plays random events, and compares the counts of the queue with the states of the polls.
func FuzzPollQueueKeepsItsCounts(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 250, 250, 251, 251, 0, 1, 252, 7, 253, 3, 250, 251})
	f.Fuzz(func(t *testing.T, script []byte) {
		d := newDriver(t, GitOptions{})
		d.concurrent = 5
		var running []*poll
		for _, command := range script {
			switch {
			case command == 250:
				begun, _ := d.begin()
				running = append(running, begun...)
			case command == 251 && len(running) > 0:
				d.poll(t.Context(), running[0])
				running = running[1:]
			case command > 200:
				d.stacks.Forget(types.NamespacedName{Namespace: fmt.Sprint("n", command%3), Name: fmt.Sprintf("h%d.example-%d", command%4, command%5)})
			default:
				d.subscribeFrom(fmt.Sprint("n", command%3), fmt.Sprintf("h%d.example", command%4), fmt.Sprint(command%5))
			}
			d.Expect(d.queue.total).To(Equal(len(running)))
			d.Expect(d.queue.turns).To(HaveLen(len(d.queue.ready)))
			for _, p := range d.polls {
				for _, namespace := range p.waitsIn {
					d.Expect(p.state).To(Equal(pollReady))
					d.Expect(d.queue.ready[namespace][p.host]).To(ContainElement(p))
				}
				d.Expect(p.state == pollReady).To(Equal(len(p.waitsIn) > 0))
			}
		}
		for len(running) > 0 {
			d.poll(t.Context(), running[0])
			running = running[1:]
		}
		d.pollAll()
		d.Expect(d.queue.ready).To(BeEmpty())
		d.Expect(d.queue.running).To(BeEmpty())
	})
}
