package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
)

// judged returns an app whose resource a is at version 2, and whose resource b was deleted.
func judged(t *testing.T) *App {
	a := &App{App: &localsystem.App{Name: "judged"}, dir: t.TempDir(), resources: map[string]int{"a": 2}, version: 2}
	a.write(t, "a.1.journal", "create start\ncreate end\n")
	a.write(t, "a.2.journal", "update start\nupdate end\n")
	a.write(t, "b.1.journal", "create start\ncreate end\ndelete start\ndelete end\n")
	a.write(t, "a", "2")
	return a
}

func (a *App) write(t *testing.T, name, content string) {
	NewWithT(t).Expect(os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o600)).To(Succeed())
}

// Each case breaks one promise of an app that keeps all promises.
func TestJudgeSeesWhatIsLostOrDoubled(t *testing.T) {
	remove := func(names ...string) func(*testing.T, *App) {
		return func(t *testing.T, a *App) {
			for _, name := range names {
				NewWithT(t).Expect(os.Remove(filepath.Join(a.dir, name))).To(Succeed())
			}
		}
	}
	write := func(name, content string) func(*testing.T, *App) {
		return func(t *testing.T, a *App) { a.write(t, name, content) }
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *App)
		says   string
	}{
		"all is well":                           {func(*testing.T, *App) {}, ""},
		"a resource was never made":             {remove("a.1.journal", "a.2.journal", "a"), "it was lost"},
		"a resource is gone":                    {remove("a"), "wanted is true, there is false"},
		"the last version was not made":         {write("a.2.journal", "update start\n"), "version 2 was made 0 times"},
		"the last version was made twice":       {write("a.2.journal", "update start\nupdate end\nupdate start\nupdate end\n"), "version 2 was made 2 times"},
		"an old version was made last":          {write("a", "1"), `it is at version "1" instead of 2`},
		"a resource was created twice":          {write("a.1.journal", "create start\ncreate end\ncreate start\ncreate end\n"), "it was created 2 times"},
		"a creation that was cut off came back": {write("a.1.journal", "create start\ncreate start\ncreate end\n"), "it was created 2 times"},
		"a resource was deleted":                {write("a.3.journal", "delete start\ndelete end\n"), "it was deleted"},
		"a resource was not deleted":            {write("b.1.journal", "create start\ncreate end\n"), "created 1 times and deleted 0 times"},
		"a resource was deleted twice": {
			write("b.2.journal", "delete start\ndelete end\n"), "it was deleted 2 times",
		},
		"a resource that nobody wants is there": {write("b", "1"), "wanted is false, there is true"},
		"a deleted Stack has resources":         {func(_ *testing.T, a *App) { a.deleted = true }, "wanted is false, there is true"},
		"a cancelled creation is made again":    {write("a.1.journal", "create start\ncreate aborted\ncreate start\ncreate end\n"), ""},
		"pulumi was killed after an update ended": {func(t *testing.T, a *App) {
			a.kills = 1
			a.write(t, "a.2.journal", "update start\nupdate end\nupdate start\nupdate end\n")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := judged(t)
			test.change(t, a)
			err := a.audit()
			if test.says == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.says)))
		})
	}
}

func TestJudgeSeesWhatRanOutOfOrder(t *testing.T) {
	g := NewWithT(t)
	first, last := judged(t), judged(t)
	tr := &train{members: []*App{first, last}, first: map[*App]bool{first: true}, commits: []map[*App]int{{first: 1, last: 2}, {first: 3, last: 3}}}
	g.Expect(tr.audit(last)).To(Succeed(), "it never ran the second commit")
	last.write(t, "a.3.journal", "update start\n")
	g.Expect(tr.audit(last)).To(MatchError(ContainSubstring("never ran version 3")))
	g.Expect(tr.audit(first)).To(Succeed())
	first.write(t, "a.3.journal", "update start\n")
	g.Expect(tr.audit(last)).To(Succeed())
}

func TestWatcherSeesAStatusThatContradictsItself(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	stack.Generation = 2
	stack.Status.ObservedGeneration = 2
	for _, condition := range []string{meta.ReadyCondition, meta.ReconcilingCondition} {
		stack.Status.Conditions = append(stack.Status.Conditions, metav1.Condition{
			Type: condition, Status: metav1.ConditionTrue, Reason: "Made", Message: "up", ObservedGeneration: 2, LastTransitionTime: metav1.Now(),
		})
	}
	w := &watcher{last: map[types.UID]any{}}
	w.check(t.Context(), watch.Modified, stack)
	checked, err := w.take()
	g.Expect(checked).To(Equal(1))
	g.Expect(err).To(HaveOccurred())
	_, err = w.take()
	g.Expect(err).NotTo(HaveOccurred())
}

func TestAScheduleFollowsFromSeedAndRunAlone(t *testing.T) {
	g := NewWithT(t)
	var catalogue []Fault
	for i := range 30 {
		catalogue = append(catalogue, Fault{Kind: fmt.Sprint("kind ", i), Rare: i < 2, Longest: time.Duration(i%2) * time.Second})
	}
	planned := func(seed uint64) *Plan {
		p := &Plan{Stacks: 3, Calm: true, Changes: []Change{Commit, Rework, Delete}}
		p.choose(seed, catalogue, false)
		return p
	}
	p, again := planned(7), planned(7)
	pairs, rare := 0, 0
	seen := map[string]bool{}
	for run := 500; run > 0; run-- {
		events := p.schedule(run)
		g.Expect(list(events)).To(Equal(list(again.schedule(run))))
		faults := 0
		for _, e := range events {
			if e.Fault != nil {
				faults++
				seen[e.What] = true
			}
			if e.Fault != nil && e.Fault.Rare {
				rare++
			}
		}
		if faults == 2 {
			pairs++
		}
	}
	g.Expect(pairs).To(BeNumerically("~", 250, 50))
	g.Expect(rare).To(Equal(3))
	g.Expect(seen).To(HaveLen(len(catalogue)))
	g.Expect(list(planned(8).schedule(2))).NotTo(Equal(list(p.schedule(2))))
}
