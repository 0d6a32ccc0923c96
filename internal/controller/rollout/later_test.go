package rollout

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// reversed returns a fleet in which a Stack of the first wave depends on one of the last.
func reversed(t *testing.T) (f *fleet, later *pulumiv1.Stack) {
	f = newFleet(t)
	later = f.stacks[7]
	dependOn(f.stacks[0], later)
	return f, later
}

func TestDependencyInALaterWaveThatDoesNotChangeIsNoAlarm(t *testing.T) {
	f, later := reversed(t)
	f.offers("b")
	f.Expect(f.last.failed).To(BeFalse())
	f.Expect(f.last.message).To(Equal("wave canary waits: Stack team/s0 in wave canary depends on Stack team/s7 in the later wave rest, and whether " +
		revision("b").Revision + " changes anything for that one is not known yet"))
	f.Expect(f.turns()).To(BeEmpty(), "nobody begins before that is known")
	f.Expect(f.last.after).To(Equal(compareGrace))
	f.Expect(f.last.wake).To(Equal(byStacks))
	f.now = f.now.Add(10 * time.Second)
	unchanged(later, "b")
	f.decide()
	f.Expect(f.turns()).To(HaveLen(3))
	f.finish("b")
	f.Expect(f.last.complete).To(BeTrue())
	f.Expect(f.events).NotTo(ContainElement(autov1alpha1.DependencyInLaterWaveReason))
}

func TestDependencyInALaterWaveThatChangesIsReportedOnce(t *testing.T) {
	f, later := reversed(t)
	f.offers("b")
	f.now = f.now.Add(f.last.after)
	f.Expect(f.decide().stalled).To(BeTrue())
	f.Expect(f.turns()).To(BeEmpty())
	f.now = f.now.Add(time.Minute)
	f.Expect(f.offers("c").stalled).To(BeTrue(), "another commit does not hide it meanwhile")
	f.Expect(f.events).To(Equal([]string{eventStarted, autov1alpha1.DependencyInLaterWaveReason, eventSuperseded, eventStarted}))
	unchanged(later, "c")
	f.Expect(f.decide().stalled).To(BeFalse())
}

func TestDependencyInALaterWaveThatIsAddedLongAfterTheCommit(t *testing.T) {
	f := newFleet(t)
	f.offers("b")
	f.now = f.now.Add(time.Hour)
	dependOn(f.stacks[0], f.stacks[7])
	f.Expect(f.decide().reason).To(Equal(autov1alpha1.DependencyInLaterWaveReason))
}

func TestDependencyInALaterWaveWaitsForItsSource(t *testing.T) {
	f, later := reversed(t)
	f.behind = areBehind(later)
	f.offers("b")
	f.Expect(f.turns()).To(ConsistOf(f.stacks[1], f.stacks[2]), "others do not wait for the source of one tenant")
	f.now = f.now.Add(time.Hour)
	f.Expect(f.decide().reason).To(Equal(autov1alpha1.RolloutProgressingReason), "what it offers later may change nothing")
	f.published, f.behind = f.now, nil
	f.Expect(f.decide().reason).To(Equal(autov1alpha1.RolloutProgressingReason), "it has not compared yet")
	f.Expect(f.last.after).To(BeNumerically("<=", compareGrace))
	f.now = f.now.Add(compareGrace)
	f.Expect(f.decide().reason).To(Equal(autov1alpha1.DependencyInLaterWaveReason))
}

func TestSourceThatPublishesInTheFutureHidesNoDependencyInALaterWave(t *testing.T) {
	f, _ := reversed(t)
	f.published = f.now.Add(24 * time.Hour)
	f.offers("b")
	f.Expect(f.last.after).To(Equal(compareGrace))
	f.now = f.now.Add(compareGrace)
	f.Expect(f.decide().reason).To(Equal(autov1alpha1.DependencyInLaterWaveReason))
}

func TestDependencyInALaterWaveThatWasNeverDeployed(t *testing.T) {
	f, later := reversed(t)
	later.Status = pulumiv1.StackStatus{}
	f.offers("b")
	f.Expect(f.last.reason).To(Equal(autov1alpha1.DependencyInLaterWaveReason), "it has nothing to compare")

	// What all others have is what new Stacks begin with, without a turn.
	f, later = reversed(t)
	f.now = f.now.Add(time.Hour)
	later.Status, f.stacks[0].Status = pulumiv1.StackStatus{}, pulumiv1.StackStatus{}
	f.decide()
	f.Expect(f.last.failed).To(BeFalse(), f.last.message)
	succeed(later, "a")
	succeed(f.stacks[0], "a")
	f.Expect(f.decide().complete).To(BeTrue())
}

func TestSourcesOfTenantsSayWhenTheyHaveLastPublished(t *testing.T) {
	g := NewWithT(t)
	times := map[string]time.Time{"east": noon, "west": noon.Add(time.Minute), "north": noon.Add(-time.Hour)}
	s := &sources{kind: sourcev1.GitRepositoryKind, key: "platform", repository: "https://git.example.com/infra", others: map[string]*otherSource{},
		keyOf: func(stack *pulumiv1.Stack) string { return stack.Namespace },
		resolve: func(stack *pulumiv1.Stack) (*source.Artifact, error) {
			return &source.Artifact{Repository: "https://git.example.com/infra", Published: times[stack.Namespace], Watched: true}, nil
		}}
	for tenant := range times {
		g.Expect(s.check(following(tenant, sourcev1.GitRepositoryKind, "infra"))).To(BeEmpty())
	}
	g.Expect(s.published).To(Equal(times["west"]))
}
