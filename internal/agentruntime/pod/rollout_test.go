package pod

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nowhere says that no pod with the new agent was ready.
func nowhere(string) bool { return false }

func TestFewPodsAreReplacedAtOnceAndTheOthersGetTheirTurn(t *testing.T) {
	g := NewWithT(t)
	var woken []types.NamespacedName
	r := newRollout(func(key types.NamespacedName) { woken = append(woken, key) }, nowhere, nil)
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
	r := newRollout(func(key types.NamespacedName) { woken = append(woken, key) }, nowhere, nil)
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
		r := newRollout(func(types.NamespacedName) { woken.Add(1) }, nowhere, nil)
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

// replacing has many workspaces in the namespaces "team" and "other", whose pods are replaced as soon as they may be, and then have the state.
type replacing struct {
	*rollout
	replaced map[types.NamespacedName]bool
	woken    []types.NamespacedName
	pauses   []string
	mu       sync.Mutex
}

func startReplacing(fails func(types.NamespacedName) bool, works func(string) bool) *replacing {
	r := &replacing{replaced: map[types.NamespacedName]bool{}}
	r.rollout = newRollout(func(key types.NamespacedName) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.woken = append(r.woken, key)
	}, works, func(namespace string) { r.pauses = append(r.pauses, namespace) })
	for i := range 40 {
		r.woken = append(r.woken, types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)})
	}
	r.reconcile(fails)
	return r
}

// reconcile does what the runtime does for the workspaces that were woken.
func (r *replacing) reconcile(fails func(types.NamespacedName) bool) {
	r.mu.Lock()
	woken := r.woken
	r.woken = nil
	r.mu.Unlock()
	for _, key := range woken {
		if !r.replaced[key] && r.begin(key) {
			r.replaced[key] = true
			r.observe(key, fails(key))
		}
	}
}

// wait passes the time in which ten replacements can fail one after the other.
func (r *replacing) wait(fails func(types.NamespacedName) bool) {
	for range 20 * 10 {
		time.Sleep(rolloutTimeout / 10)
		synctest.Wait()
		r.reconcile(fails)
	}
}

func TestNamespaceWhereNoPodBecomesReadyKeepsItsOtherPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		always := func(types.NamespacedName) bool { return true }
		var works atomic.Bool // timers read it
		r := startReplacing(always, func(string) bool { return works.Load() })
		r.wait(always)
		g.Expect(len(r.replaced)).To(BeNumerically("<=", maxRollingOfNamespace+maxFailedOfNamespace-1))
		g.Expect(r.pauses).To(HaveExactElements("team"))
		g.Expect(r.rolling).To(BeEmpty(), "it holds no places")
		g.Expect(r.begin(types.NamespacedName{Namespace: "other", Name: "app"})).To(BeTrue())

		for i := range 40 { // a workspace that is deleted does not wait
			if key := (types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)}); i > 20 && i%2 == 0 {
				r.forget(key)
				r.replaced[key] = true
			}
		}
		g.Expect(r.woken).To(BeEmpty())
		works.Store(true)
		r.succeed("team")
		g.Expect(r.woken).To(And(HaveLen(26), Not(ContainElement(types.NamespacedName{Namespace: "team", Name: "38"}))))
		r.reconcile(always)
		r.wait(always)
		g.Expect(r.replaced).To(HaveLen(40), "some pods that fail hold up the others for a time only")
		g.Expect(r.pauses).To(HaveLen(1))
	})
}

func TestPodsThatFailByThemselvesDoNotPauseTheirNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		never := func(types.NamespacedName) bool { return false }
		r := startReplacing(never, nowhere)
		r.wait(never)
		g.Expect(r.replaced).To(HaveLen(40))
		g.Expect(r.pauses).To(BeEmpty())
	})
}

func TestNamespaceDoesNotPauseForWorkspacesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		always := func(types.NamespacedName) bool { return true }
		r := startReplacing(always, nowhere)
		r.wait(always)
		before := len(r.replaced)
		for key := range r.replaced {
			r.forget(key)
		}
		g.Expect(r.failed).To(BeEmpty())
		r.reconcile(always)
		g.Expect(len(r.replaced)).To(BeNumerically(">", before))
		r.wait(always) // the places that were given have timers
	})
}

func TestOnlyWhatTheAgentMayCauseCountsAsFailureOfAReplacement(t *testing.T) {
	key := types.NamespacedName{Namespace: "team", Name: "app"}
	refused := func(message string) func(*observation) {
		return of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", "create Pod p in StatefulSet s failed error: "+message))
	}
	for name, tt := range map[string]struct {
		observed func(*observation)
		fails    bool
	}{
		"the image of the agent cannot be pulled": {waits("ErrImagePull", "not found"), true},
		"the agent crashes":                       {ended(2, corev1.ContainerStateTerminated{ExitCode: 3}), true},
		"a webhook refuses the pod":               {refused(`admission webhook "w" denied the request: no`), true},
		"the quota refuses the pod":               {refused("exceeded quota"), false},
		"no node takes the pod":                   {of(unready, condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available")), false},
		"the old pod is still there":              {func(o *observation) { o.wanted.agent = "a2" }, false},
		"the old pod is ending":                   {of(deleted(time.Minute), func(o *observation) { o.wanted.agent = "a2" }), false},
		"the pod is ready":                        {func(*observation) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tracked := &tracker{}
			r := &Runtime{trackers: map[types.NamespacedName]*tracker{key: tracked}}
			r.rollout = newRollout(func(types.NamespacedName) {}, r.hasWorkingAgent, nil)
			g.Expect(r.rollout.begin(key)).To(BeTrue())
			defer r.rollout.end(key)
			o := observed(tt.observed)
			d := decide(o)
			r.observeRollout(tracked, key, o, d)
			g.Expect(r.rollout.rolling[key].fails).To(Equal(tt.fails))
			g.Expect(r.hasWorkingAgent("team")).To(Equal(name == "the pod is ready"))
		})
	}
}
