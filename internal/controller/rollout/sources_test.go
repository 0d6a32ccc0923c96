package rollout

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// following returns a Stack that follows the source of the kind and name in its namespace.
func following(namespace, kind, name string) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{Namespace: namespace, Name: "s"}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: kind, Name: name}}
	return stack
}

func keyOfTest(stack *pulumiv1.Stack) string {
	if stack.Spec.FluxSource == nil {
		return ""
	}
	ref := stack.Spec.FluxSource.SourceRef
	return fmt.Sprintf("%s %s/%s", ref.Kind, stack.Namespace, ref.Name)
}

func TestSourcesOfTheSameRepositoryTakePart(t *testing.T) {
	const git, own = sourcev1.GitRepositoryKind, "https://git.example.com/infra"
	looked := map[string]int{}
	resolve := func(stack *pulumiv1.Stack) (*source.Artifact, error) {
		key := keyOfTest(stack)
		looked[key]++
		found := &source.Artifact{Reference: artifact.Reference{Revision: revision("b").Revision, Digest: "sha256:of-another-tarball"}, Repository: own}
		switch stack.Namespace {
		case "behind":
			found.Revision = revision("a").Revision
		case "elsewhere":
			found.Repository = "https://git.example.com/other"
		case "missing":
			return nil, &source.Problem{Message: "it does not exist"}
		case "broken":
			return nil, errors.New("the API server does not answer")
		}
		return found, nil
	}
	newSources := func(kind string, unknown bool) *sources {
		s := &sources{resolve: resolve, keyOf: keyOfTest, kind: kind, key: kind + " platform/infra", unknown: unknown, others: map[string]*otherSource{}}
		if !unknown && kind == git {
			s.repository = own
		}
		return s
	}
	status := &autov1alpha1.StackRolloutStatus{Target: &autov1alpha1.RolloutTarget{RolloutRevision: revision("b")}}
	for name, test := range map[string]struct {
		stack   *pulumiv1.Stack
		kind    string
		unknown bool
		problem string
		behind  bool
	}{
		"the same object":                   {stack: following("platform", git, "infra"), kind: git},
		"the same repository":               {stack: following("team", git, "infra"), kind: git},
		"one that was polled earlier":       {stack: following("behind", git, "infra"), kind: git, behind: true},
		"another repository":                {stack: following("elsewhere", git, "infra"), kind: git, problem: "its source is of https://git.example.com/other, and spec.sourceRef of " + own},
		"another kind":                      {stack: following("team", sourcev1.BucketKind, "infra"), kind: git, problem: "its source is not the one in spec.sourceRef"},
		"a kind that has no repository":     {stack: following("team", sourcev1.BucketKind, "infra"), kind: sourcev1.BucketKind, problem: "its source is not the one in spec.sourceRef"},
		"no source":                         {stack: &pulumiv1.Stack{}, kind: git, problem: "its source is not the one in spec.sourceRef"},
		"one without an artifact":           {stack: following("missing", git, "infra"), kind: git, behind: true},
		"one that cannot be read":           {stack: following("broken", git, "infra"), kind: git, behind: true},
		"while nobody knows the repository": {stack: following("elsewhere", git, "infra"), kind: git, unknown: true, behind: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newSources(test.kind, test.unknown)
			g.Expect(s.check(test.stack)).To(Equal(test.problem))
			if test.problem == "" {
				g.Expect(s.isBehind(test.stack, status)).To(Equal(test.behind))
			}
		})
	}
	t.Run("many Stacks of many sources", func(t *testing.T) {
		g := NewWithT(t)
		s := newSources(git, false)
		clear(looked)
		refused := 0
		for i := range 2 * maxSources {
			for range 3 {
				if s.check(following(fmt.Sprint(i), git, "infra")) != "" {
					refused++
				}
			}
		}
		g.Expect(refused).To(Equal(3 * maxSources))
		g.Expect(looked).To(HaveLen(maxSources))
		g.Expect(looked).To(HaveEach(1), "each is read once")
	})
}

// packing returns a fleet whose first Stack has its own source of the same repository, which packs the same commits into other artifacts.
// becomes lets the Stack report something about an artifact of its own.
func packing(t *testing.T) (f *fleet, stack *pulumiv1.Stack, becomes func(func(*pulumiv1.Stack, string), *autov1alpha1.RolloutRevision)) {
	f = newFleet(t)
	stack = f.stacks[0]
	stack.Spec.FluxSource.SourceRef = pulumiv1.FluxSourceReference{Kind: sourcev1.GitRepositoryKind, Name: "own"}
	becomes = func(change func(*pulumiv1.Stack, string), as *autov1alpha1.RolloutRevision) {
		success := stack.Status.LastUpdate.LastSuccessfulCommit
		if change(stack, letter(as.Digest)); stack.Status.LastUpdate.State == pulumiv1.StackUpdateSucceeded {
			success = as.Digest
		}
		stack.Status.LastUpdate.LastAttemptedCommit, stack.Status.LastUpdate.LastSuccessfulCommit = as.Digest, success
		stack.Status.LastUpdate.Name = as.Revision
	}
	becomes(succeed, packed(revision("a")))
	return f, stack, becomes
}

func TestStackWhoseSourcePacksTheCommitDifferently(t *testing.T) {
	t.Run("fails", func(t *testing.T) {
		f, stack, becomes := packing(t)
		f.offers("b")
		becomes(fail, packed(revision("b")))
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "it was not broken before")
		f.Expect(f.rollout.Status.Failing).To(ConsistOf(HaveField("Stack", "team/"+stack.Name)))
		f.offer = again("b", 1)
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason), "it failed with the same content")
	})
	t.Run("needs an approval", func(t *testing.T) {
		f, stack, _ := packing(t)
		stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
		f.offers("b")
		f.Expect(f.turns()).NotTo(ContainElement(stack))
		hasPlan(stack, "b", pulumiv1.PlanApproved)
		stack.Status.Plan.Commit = packed(revision("b")).Digest
		f.decide()
		f.Expect(f.turns()).To(ContainElement(stack))
	})
	t.Run("looks for drift, and the commit gets another name", func(t *testing.T) {
		f, stack, becomes := packing(t)
		f.rollout.Spec.Waves[0].NoDrift = true
		f.offers("b")
		becomes(succeed, packed(revision("b")))
		f.decide()
		f.Expect(waves.ChecksDrift(stack, f.rollout)).To(BeTrue())
		f.offer = again("b", 1)
		stack.Status.LastAppliedRevision, stack.Status.LastAttemptedRevision = f.offer.Revision, f.offer.Revision
		f.decide()
		f.Expect(f.turns()).To(ContainElement(stack))
		f.Expect(waves.ChecksDrift(stack, f.rollout)).To(BeTrue(), "it was not checked yet")
	})
	t.Run("ends as another commit comes", func(t *testing.T) {
		f, stack, becomes := packing(t)
		f.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
		f.offers("b")
		f.now = f.now.Add(time.Minute)
		becomes(succeed, packed(revision("b")))
		stack.Status.LastUpdate.LastResyncTime = metav1.NewTime(f.now)
		for _, other := range f.stacks[:3] {
			unchanged(other, "c")
		}
		last := stack.Status.LastUpdate
		last.LastAttemptedCommit, last.LastSuccessfulCommit = packed(revision("c")).Digest, packed(revision("c")).Digest
		f.offers("c")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutSoakingReason), "it was updated to b just now")
		f.Expect(f.last.after).To(Equal(time.Hour))
	})
}

// A Stack whose own source has something newer than the target cannot use its turn. It would keep a place, and count as a failure after its timeout.
func TestTurnOfAStackWhoseSourceIsAheadIsTakenBack(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.MaxConcurrent = number(1)
	f.offers("b")
	ahead := f.turns()[0]
	f.behind = func(stack *pulumiv1.Stack, _ *autov1alpha1.StackRolloutStatus) bool { return stack == ahead }
	f.decide()
	f.Expect(f.turns()).To(And(HaveLen(1), Not(ContainElement(ahead))))
	f.finish("b")
	f.Expect(f.last.message).To(HavePrefix("wave canary waits: the sources of 1 of its Stacks do not offer"))
	f.Expect(f.last.wake).To(Equal(bySource))
}

// A plan that a commit does not change is one of the new commit, which its Stack says.
func TestPlanOfTheSameCommitUnderAnotherNameWakesItsRollout(t *testing.T) {
	f := approving(t)
	before := f.stacks[3]
	hasPlan(before, "b", pulumiv1.PlanApproved)
	after := before.DeepCopy()
	after.Status.Plan.Revision = again("b", 1).Revision
	NewWithT(t).Expect(concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue())
	kept, err := CacheTransform(after.DeepCopy())
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(kept.(*pulumiv1.Stack).Status.Plan.Revision).To(Equal(after.Status.Plan.Revision))
}

// lagging is a source of which the cache has an earlier artifact than the API server.
type lagging struct {
	*source.Flux
	// requests is how often the API server was asked.
	requests int
}

func (l *lagging) Resolve(_ context.Context, _ *pulumiv1.Stack, live bool) (*source.Artifact, error) {
	found := &source.Artifact{Digest: revision("a").Digest, Revision: revision("a").Revision, Published: noon, Watched: true, Repository: "https://git.example.com/infra"}
	if live {
		l.requests++
		found.Digest, found.Revision, found.Published = revision("b").Digest, revision("b").Revision, noon.Add(time.Hour)
	}
	return found, nil
}

// After a restart the cache may be behind. What was the target before must not take the place of the target.
func TestTargetStaysWhenTheCacheIsBehind(t *testing.T) {
	g := NewWithT(t)
	sources := &source.Set{Sources: []source.Source{&lagging{Flux: &source.Flux{}}}}
	rollout := newFleet(t).rollout
	offered := func() string {
		found, err := sources.Resolve(t.Context(), follower(rollout))
		g.Expect(err).NotTo(HaveOccurred())
		return found.Revision
	}
	rollout.Status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: revision("b"), Since: metav1.NewTime(noon.Add(time.Hour))}
	g.Expect(offered()).To(Equal(revision("b").Revision))
	rollout.Status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: revision("a"), Since: metav1.NewTime(noon)}
	g.Expect(offered()).To(Equal(revision("a").Revision))
}

// A Stack that waits for its turn is resynced, too, after its source has published what it may not have yet.
func TestSourcesOfTenantsAreReadFromTheCache(t *testing.T) {
	g := NewWithT(t)
	flux := &lagging{Flux: &source.Flux{}}
	r := &Reconciler{Sources: &source.Set{Sources: []source.Source{flux}}}
	rollout := newFleet(t).rollout
	offered, err := flux.Resolve(t.Context(), nil, false)
	g.Expect(err).NotTo(HaveOccurred())
	others := r.sourcesLike(t.Context(), rollout, offered)
	status := &autov1alpha1.StackRolloutStatus{Target: &autov1alpha1.RolloutTarget{RolloutRevision: revision("a")}}
	for _, tenant := range []string{"team-1", "team-2"} {
		stack := following(tenant, sourcev1.GitRepositoryKind, "infra")
		stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: revision("c").Digest, LastResyncTime: metav1.NewTime(noon.Add(time.Hour))}
		g.Expect(others.check(stack)).To(BeEmpty())
		g.Expect(others.isBehind(stack, status)).To(BeFalse())
	}
	g.Expect(others.others).To(HaveLen(2))
	g.Expect(flux.requests).To(BeZero())
}

// A check may read the conditions of a Stack, so a change of one brings its StackRollout back.
func TestChangeOfAConditionConcernsTheStackRollout(t *testing.T) {
	g := NewWithT(t)
	before := following("team", sourcev1.GitRepositoryKind, "infra")
	before.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "all"}
	conditions.MarkFalse(before, pulumiv1.DriftedCondition, pulumiv1.NoDriftReason, "none")
	after := before.DeepCopy()
	g.Expect(concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeFalse())
	conditions.MarkFalse(after, pulumiv1.DriftedCondition, pulumiv1.NoDriftReason, "none still")
	g.Expect(concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeFalse(), "messages change often")
	conditions.MarkTrue(after, pulumiv1.DriftedCondition, pulumiv1.DriftDetectedReason, "drifted")
	g.Expect(concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue())
}

func TestRolloutAsksAgainForASourceThatIsNotWatched(t *testing.T) {
	g := NewWithT(t)
	o := observation{now: time.Now(), rollout: &autov1alpha1.StackRollout{Spec: autov1alpha1.StackRolloutSpec{Waves: []autov1alpha1.RolloutWave{{}}}}, offer: new(revision("a")), unwatched: true}
	o.observeAgain = func(*autov1alpha1.StackRolloutStatus) []*waves.Member { return nil }
	g.Expect(decide(o).after).To(BeNumerically("~", sourceInterval, sourceInterval-1))
	o.unwatched = false
	g.Expect(decide(o).after).To(BeZero())
}
