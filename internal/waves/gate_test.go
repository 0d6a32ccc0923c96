package waves

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	commitA, commitB = "5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc", "4830b1904830b1904830b1904830b1904830b190"
	digestA, digestB = "sha256:a5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc5287e", "sha256:b4830b1904830b1904830b1904830b1904830b1904830b1904830b1904830b1"
)

var revisionA, revisionB = autov1alpha1.RolloutRevision{Revision: "main@sha1:" + commitA, Digest: digestA}, autov1alpha1.RolloutRevision{Revision: "main@sha1:" + commitB, Digest: digestB}

func TestSame(t *testing.T) {
	for _, test := range []struct {
		a, b autov1alpha1.RolloutRevision
		same bool
	}{
		{revisionA, revisionA, true},
		{revisionA, revisionB, false},
		{revisionA, autov1alpha1.RolloutRevision{Revision: "sha1:" + commitA}, true},
		{revisionA, autov1alpha1.RolloutRevision{Revision: commitA}, true},
		{revisionA, autov1alpha1.RolloutRevision{Revision: "other@sha1:" + commitA, Digest: digestB}, true},
		{revisionA, autov1alpha1.RolloutRevision{Digest: digestA}, true},
		{revisionA, autov1alpha1.RolloutRevision{Revision: digestA, Digest: digestA}, true},
		{revisionA, autov1alpha1.RolloutRevision{Revision: "main@sha1:5287e5dc"}, false},
		{revisionA, autov1alpha1.RolloutRevision{Revision: "main"}, false},
		{autov1alpha1.RolloutRevision{Revision: "v1"}, autov1alpha1.RolloutRevision{Revision: "v1"}, true},
		{autov1alpha1.RolloutRevision{Revision: "v1"}, autov1alpha1.RolloutRevision{Revision: "v2"}, false},
		{autov1alpha1.RolloutRevision{Revision: "v1", Digest: digestA}, autov1alpha1.RolloutRevision{Revision: "v1"}, true},
		{autov1alpha1.RolloutRevision{Revision: "v1", Digest: digestA}, autov1alpha1.RolloutRevision{Revision: "v1", Digest: digestB}, false},
		{autov1alpha1.RolloutRevision{Revision: "v1@sha256:" + digestA[7:]}, autov1alpha1.RolloutRevision{Revision: "latest@sha256:" + digestA[7:]}, true},
		{autov1alpha1.RolloutRevision{}, autov1alpha1.RolloutRevision{}, false},
		{autov1alpha1.RolloutRevision{Revision: "@"}, autov1alpha1.RolloutRevision{Revision: "x@"}, false},
	} {
		NewWithT(t).Expect(Same(test.a, test.b)).To(Equal(test.same), "%v %v", test.a, test.b)
		NewWithT(t).Expect(Same(test.b, test.a)).To(Equal(test.same), "%v %v", test.b, test.a)
	}
}

// labelsOf has the labels of Namespaces.
type labelsOf map[string]map[string]string

func (l labelsOf) Labels(namespace string) (map[string]string, error) {
	found, known := l[namespace]
	if !known {
		return nil, errors.New("the controller may not list and watch Namespaces")
	}
	return found, nil
}

func selecting(value string) *autov1alpha1.AllowedNamespaces {
	return &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"infra": value}}}
}

func TestRelease(t *testing.T) {
	type facts struct {
		stack   *pulumiv1.Stack
		rollout *autov1alpha1.StackRollout
	}
	for name, test := range map[string]struct {
		change   func(*facts)
		released bool
		reason   string
	}{
		"waits for its turn":       {func(*facts) {}, false, pulumiv1.WaveNotOpenReason},
		"no StackRollout is named": {func(f *facts) { f.stack.Spec.RolloutRef = nil }, true, ""},
		"only previewed":           {func(f *facts) { f.stack.Spec.Preview = true }, true, ""},
		"being deleted":            {func(f *facts) { f.stack.DeletionTimestamp = new(metav1.Now()) }, true, ""},
		"attempted before":         {func(f *facts) { f.stack.Status.LastUpdate.LastAttemptedCommit = digestB }, true, ""},
		"never updated":            {func(f *facts) { f.stack.Status.LastUpdate = nil }, false, pulumiv1.WaveNotOpenReason},
		"there is none":            {func(f *facts) { f.rollout = nil }, false, pulumiv1.RolloutNotFoundReason},
		"namespace not admitted":   {func(f *facts) { f.rollout.Spec.AllowedNamespaces = nil }, false, pulumiv1.RolloutNotFoundReason},
		"namespace selected": {func(f *facts) {
			f.rollout.Spec.AllowedNamespaces = selecting("shared")
			f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}
		}, true, ""},
		"namespace selected, without a turn": {func(f *facts) { f.rollout.Spec.AllowedNamespaces = selecting("shared") }, false, pulumiv1.WaveNotOpenReason},
		"namespace not selected": {func(f *facts) {
			f.rollout.Spec.AllowedNamespaces = selecting("other")
			f.rollout.Status.Stable = &revisionB
		}, false, pulumiv1.RolloutNotFoundReason},
		"namespace not known": {func(f *facts) {
			f.stack.Namespace, f.rollout.Spec.AllowedNamespaces = "unknown", selecting("shared")
			f.rollout.Status.Stable = &revisionB
		}, false, pulumiv1.RolloutNotFoundReason},
		"selector that is none": {func(f *facts) {
			f.rollout.Spec.AllowedNamespaces = selecting("shared")
			f.rollout.Spec.AllowedNamespaces.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		}, false, pulumiv1.RolloutNotFoundReason},
		"reached everyone":           {func(f *facts) { f.rollout.Status.Stable = &revisionB }, false, pulumiv1.WaveNotOpenReason},
		"reached everyone before it": {func(f *facts) { f.rollout.Status.Stable, f.stack.Status.LastUpdate = &revisionB, nil }, true, ""},
		"reached everyone and was rejected since": {func(f *facts) {
			f.rollout.Status.Stable, f.stack.Status.LastUpdate = &autov1alpha1.RolloutRevision{Revision: revisionB.Revision}, nil
		}, false, pulumiv1.WaveNotOpenReason},
		"a turn for its other source": {func(f *facts) {
			f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}
			f.rollout.Status.Target.Digest = digestA
		}, true, ""},
		"a turn for other content": {func(f *facts) {
			f.rollout.Status.Turns, f.rollout.Status.Target.Digest = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}, digestA
			f.stack.Namespace, f.stack.Spec.ProgramRef, f.rollout.Status.Turns[0].Stack = "platform", &pulumiv1.ProgramReference{Name: "infra"}, "platform/network"
			f.rollout.Spec.SourceRef = autov1alpha1.RolloutSource{Kind: pulumiv1.ProgramKind, Name: "infra"}
		}, false, pulumiv1.WaveNotOpenReason},
		"has a turn": {func(f *facts) { f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/network"}} }, true, ""},
		"has a turn that is paused": {func(f *facts) {
			f.rollout.Status.Turns, f.rollout.Status.Paused = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}, true
		}, false, pulumiv1.WaveNotOpenReason},
		"only a plan":         {func(f *facts) { f.rollout.Status.Plans = []string{"team/network"} }, true, ""},
		"plan of another one": {func(f *facts) { f.rollout.Status.Plans = []string{"team/net"} }, false, pulumiv1.WaveNotOpenReason},
		"a turn besides": {func(f *facts) {
			f.rollout.Status.Plans, f.rollout.Status.Turns = []string{"team/network"}, []autov1alpha1.RolloutTurn{{Stack: "team/network"}}
		}, true, ""},
		"only a plan of a turn that is paused": {func(f *facts) {
			f.stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
			f.rollout.Status.Turns, f.rollout.Status.Paused = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}, true
		}, true, ""},
		"no plan of what was rejected": {func(f *facts) {
			f.stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
			f.rollout.Status.Turns, f.rollout.Status.Paused = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}, true
			f.rollout.Status.Rejected = revisionB.Revision
		}, false, pulumiv1.WaveNotOpenReason},
		"refused": {func(f *facts) {
			f.rollout.Status.Refused = []autov1alpha1.RolloutFailure{{Stack: "team/other"}, {Stack: "team/network", Message: "its source is of " + commitB}}
		}, false, pulumiv1.WaveNotOpenReason},
		"refused, and never updated": {func(f *facts) {
			f.stack.Status.LastUpdate, f.rollout.Status.Refused = nil, []autov1alpha1.RolloutFailure{{Stack: "team/network"}}
		}, false, pulumiv1.WaveNotOpenReason},
		"released by name": {func(f *facts) {
			f.rollout, f.stack.Annotations = nil, map[string]string{pulumiv1.ReleaseRevisionAnnotation: "sha1:" + commitB}
		}, true, ""},
		"another one is released": {func(f *facts) {
			f.stack.Annotations = map[string]string{pulumiv1.ReleaseRevisionAnnotation: "sha1:" + commitA}
		}, false, pulumiv1.WaveNotOpenReason},
		"another one has a turn": {func(f *facts) {
			f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/net"}, {Stack: "other/network"}}
		}, false, pulumiv1.WaveNotOpenReason},
		"has a turn for another revision": {func(f *facts) {
			f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}
			f.rollout.Status.Target.RolloutRevision = revisionA
		}, false, pulumiv1.WaveNotOpenReason},
		"has a turn for nothing": {func(f *facts) {
			f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/network"}}
			f.rollout.Status.Target = nil
		}, false, pulumiv1.WaveNotOpenReason},
	} {
		t.Run(name, func(t *testing.T) {
			f := &facts{&pulumiv1.Stack{Namespace: "team", Name: "network"}, &autov1alpha1.StackRollout{Namespace: "platform", Name: "infra"}}
			f.stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "infra", Namespace: "platform"}
			f.stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: digestA}
			f.rollout.Spec.AllowedNamespaces = &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll}
			f.rollout.Status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: revisionB}
			test.change(f)
			verdict := Release(f.stack, f.rollout, revisionB, digestB, labelsOf{"team": {"infra": "shared"}})
			g := NewWithT(t)
			g.Expect(verdict.Released).To(Equal(test.released))
			g.Expect(verdict.PlanOnly).To(Equal(strings.Contains(name, "only a plan")))
			g.Expect(verdict.Reason).To(Equal(test.reason))
			g.Expect(verdict.Refused).To(Equal(strings.Contains(name, "refused")))
			if !test.released {
				g.Expect(strings.Contains(verdict.Message, "waits for its turn")).To(Equal(test.reason == pulumiv1.WaveNotOpenReason && !verdict.Refused))
				g.Expect(verdict.Message).To(ContainSubstring("platform/infra"))
				g.Expect(verdict.Message).NotTo(ContainSubstring(commitB))
			}
		})
	}
}

func TestStacksThatMayHaveSomethingNewAreWoken(t *testing.T) {
	turn := autov1alpha1.RolloutTurn{Stack: "team/a"}
	checked := turn
	checked.CheckDrift = true
	status := func(target autov1alpha1.RolloutRevision, change ...func(*autov1alpha1.StackRolloutStatus)) *autov1alpha1.StackRolloutStatus {
		s := &autov1alpha1.StackRolloutStatus{Target: &autov1alpha1.RolloutTarget{RolloutRevision: target}}
		for _, c := range change {
			c(s)
		}
		return s
	}
	turns := func(all ...autov1alpha1.RolloutTurn) func(*autov1alpha1.StackRolloutStatus) {
		return func(s *autov1alpha1.StackRolloutStatus) { s.Turns = all }
	}
	plans := func(all ...string) func(*autov1alpha1.StackRolloutStatus) {
		return func(s *autov1alpha1.StackRolloutStatus) { s.Plans = all }
	}
	paused := func(s *autov1alpha1.StackRolloutStatus) { s.Paused = true }
	refused := func(s *autov1alpha1.StackRolloutStatus) { s.Refused = []autov1alpha1.RolloutFailure{{Stack: "team/a"}} }
	for name, test := range map[string]struct {
		before, after *autov1alpha1.StackRolloutStatus
		woken         []string
	}{
		"a turn":                        {status(revisionA), status(revisionA, turns(turn, autov1alpha1.RolloutTurn{Stack: "team/b"})), []string{"team/a", "team/b"}},
		"the same turn":                 {status(revisionA, turns(turn)), status(revisionA, turns(turn)), nil},
		"a turn for another target":     {status(revisionA, turns(turn)), status(revisionB, turns(turn)), []string{"team/a"}},
		"a turn that goes on":           {status(revisionA, turns(turn), paused), status(revisionA, turns(turn)), []string{"team/a"}},
		"a turn that is paused":         {status(revisionA, turns(turn)), status(revisionA, turns(turn), paused), []string{"team/a"}},
		"a check for drift":             {status(revisionA, turns(turn)), status(revisionA, turns(checked)), []string{"team/a"}},
		"a plan":                        {status(revisionA), status(revisionA, plans("team/a")), []string{"team/a"}},
		"the same plan":                 {status(revisionA, plans("team/a")), status(revisionA, plans("team/a")), nil},
		"a turn after a plan":           {status(revisionA, plans("team/a")), status(revisionA, turns(turn)), []string{"team/a"}},
		"a plan of another target":      {status(revisionA, plans("team/a")), status(revisionB, plans("team/a")), []string{"team/a"}},
		"the first target":              {&autov1alpha1.StackRolloutStatus{}, status(revisionA, turns(turn)), []string{"team/a"}},
		"refused":                       {status(revisionA), status(revisionA, refused), []string{"team/a"}},
		"refused still":                 {status(revisionA, refused), status(revisionB, refused), nil},
		"no longer refused":             {status(revisionA, refused), status(revisionA), []string{"team/a"}},
		"nothing is left of the status": {status(revisionA, turns(turn)), &autov1alpha1.StackRolloutStatus{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var woken []string
			for _, stack := range Woken(test.before, test.after) {
				woken = append(woken, stack.String())
			}
			NewWithT(t).Expect(woken).To(Equal(test.woken))
		})
	}
}

func TestAssign(t *testing.T) {
	g := NewWithT(t)
	selects := func(tier string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}}
	}
	all := []autov1alpha1.RolloutWave{
		{Name: "one", Stacks: selects("a")},
		{Name: "two", Stacks: selects("a")},
		{Name: "three", Limit: new(intstr.FromString("10%"))},
		{Name: "rest"},
	}
	var members []*Member
	for i := range 100 {
		labels := map[string]string{"tier": "b"}
		if i < 10 {
			labels["tier"] = "a"
		}
		members = append(members, &Member{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprintf("uid-%03d", i)), Labels: labels})
	}
	count := func(members []*Member) []int {
		counts := make([]int, len(all))
		for _, m := range members {
			counts[m.Wave]++
		}
		return counts
	}
	bounds := make([]Bound, len(all))
	g.Expect(Assign(members, all, digestA, bounds)).To(Succeed())
	g.Expect(count(members)).To(Equal([]int{10, 0, 9, 81}))
	g.Expect(slices.IsSortedFunc(members, func(a, b *Member) int { return a.Wave - b.Wave })).To(BeTrue())
	firstThird := members[10].Name

	again := slices.Clone(members)
	slices.Reverse(again)
	g.Expect(Assign(again, all, digestA, bounds)).To(Succeed())
	g.Expect(again).To(Equal(members), "the order is that of the target, not that of the list")
	g.Expect(Assign(again, all, digestB, make([]Bound, len(all)))).To(Succeed())
	g.Expect(again[10].Name).NotTo(Equal(firstThird))
	byNamespace := []autov1alpha1.RolloutWave{
		{Name: "both", Stacks: selects("a"), Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}},
		{Name: "namespaces", Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}, Limit: new(intstr.FromInt32(20))},
		{Name: "rest"},
	}
	for i, m := range members {
		m.NamespaceLabels = map[string]string{"env": []string{"test", "production"}[i%2]}
	}
	g.Expect(Assign(members, byNamespace, digestA, make([]Bound, 3))).To(Succeed())
	for _, m := range members {
		g.Expect(m.Wave == 0).To(Equal(m.Labels["tier"] == "a" && m.NamespaceLabels["env"] == "test"))
		g.Expect(m.Wave != 1 || m.NamespaceLabels["env"] == "test").To(BeTrue())
	}
	g.Expect(slices.IndexFunc(members, func(m *Member) bool { return m.Wave == 2 }) - slices.IndexFunc(members, func(m *Member) bool { return m.Wave == 1 })).To(Equal(20))
	byNamespace[0].Namespaces.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	g.Expect(Assign(members, byNamespace, digestA, make([]Bound, 3))).To(MatchError(ContainSubstring(`wave "both"`)))
	g.Expect(Assign(nil, all, digestA, make([]Bound, len(all)))).To(Succeed())
}

// A fleet that is created has few Stacks at first.
func TestLimitHoldsWhenStacksJoin(t *testing.T) {
	for name, test := range map[string]struct {
		limit intstr.IntOrString
		// change is made to the second of the two Stacks that are chosen from ten. chosen is how many are of fifty.
		change func(*Member)
		chosen int
	}{
		"a number":             {intstr.FromInt32(2), func(*Member) {}, 2},
		"a percentage":         {intstr.FromString("20%"), func(*Member) {}, 10},
		"one has a turn":       {intstr.FromInt32(2), func(m *Member) { m.HasTurn = true }, 0},
		"one is updated":       {intstr.FromInt32(2), func(m *Member) { m.State = Updated }, 0},
		"one was interrupted":  {intstr.FromInt32(2), func(m *Member) { m.Changed = true }, 0},
		"one waits, suspended": {intstr.FromInt32(2), func(m *Member) { m.State = LeftOut }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			all := []autov1alpha1.RolloutWave{{Name: "early", Limit: &test.limit}, {Name: "rest"}}
			var members []*Member
			join := func(count int) {
				for range count {
					members = append(members, &Member{UID: types.UID(fmt.Sprintf("uid-%03d", len(members))), State: Waiting})
				}
			}
			bounds := make([]Bound, 2)
			early := func() (chosen []*Member) {
				g.Expect(Assign(members, all, digestA, bounds)).To(Succeed())
				for _, m := range members {
					if m.Wave == 0 {
						chosen = append(chosen, m)
					}
				}
				return chosen
			}
			join(10)
			first := early()
			g.Expect(first).To(HaveLen(2))
			test.change(first[1])
			join(40)
			now := early()
			g.Expect(early()).To(Equal(now))
			if test.chosen == 0 {
				g.Expect(now[len(now)-1]).To(Equal(first[1]), "it stays, and so do those before it in the order")
				return
			}
			g.Expect(len(now)).To(BeNumerically("<=", test.chosen))
			bound := *bounds[0].Place
			members = slices.DeleteFunc(members, func(m *Member) bool { return m == now[0] })
			g.Expect(early()).To(Equal(now[1:]), "nobody takes the place of one that leaves")
			g.Expect(*bounds[0].Place).To(Equal(bound))
		})
	}
}
