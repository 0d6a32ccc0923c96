package metrics_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

const help = `
# HELP stacks_failing 1 when the last update of the Stack failed and the Stack is not suspended, otherwise 0: also when another process has the lock, or resources are not ready yet.
# TYPE stacks_failing gauge`

func stackNamed(name string) *pulumiv1.Stack {
	return &pulumiv1.Stack{Namespace: "prod", Name: name, CreationTimestamp: metav1.Unix(1700000000, 0)}
}

// expectSeries compares all series about Stacks with want, which is in the exposition format without comments.
func expectSeries(g Gomega, registry *prometheus.Registry, want string) {
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	comments := ""
	for _, family := range families {
		comments += "# HELP " + family.GetName() + " " + family.GetHelp() + "\n# TYPE " + family.GetName() + " gauge\n"
		for line := range strings.Lines(want) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, family.GetName()) {
				comments += name + "\n"
			}
		}
	}
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(comments))).To(Succeed())
	g.Expect(testutil.GatherAndCount(registry)).To(Equal(strings.Count(strings.TrimSpace(want), "\n") + 1))
}

func TestSeriesFollowTheStatusAndGoWithTheStack(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	stacks, err := metrics.NewStacks(registry)
	g.Expect(err).NotTo(HaveOccurred())
	expectSeries(g, registry, `stacks_active 0`)

	failed := stackNamed("a")
	failed.Status.LastUpdate = &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateFailed}
	stacks.Observe(failed)
	working := stackNamed("b")
	conditions.MarkReconciling(working, "Progressing", "working")
	conditions.MarkTrue(working, pulumiv1.DriftedCondition, "DriftDetected", "somebody was here")
	stacks.Observe(working)
	expectSeries(g, registry, `
		resource_created_at_seconds{group="pulumi.com",kind="Stack",name="a",namespace="prod",version="v1"} 1.7e+09
		resource_created_at_seconds{group="pulumi.com",kind="Stack",name="b",namespace="prod",version="v1"} 1.7e+09
		stacks_active 2
		stacks_drifted{name="b",namespace="prod"} 1
		stacks_failing{name="a",namespace="prod"} 1
		stacks_failing{name="b",namespace="prod"} 0
		stacks_reconciling{name="a",namespace="prod"} 0
		stacks_reconciling{name="b",namespace="prod"} 1`)

	for _, last := range []pulumiv1.StackUpdateStatus{
		{Conflicts: 3, Reason: autov1alpha1.UpdateConflictReason}, {Reason: autov1alpha1.AwaitingResourcesReason},
	} {
		last.State = pulumiv1.StackUpdateFailed
		failed.Status.LastUpdate = &last
		stacks.Observe(failed)
		g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(help+`
stacks_failing{name="a",namespace="prod"} 0
stacks_failing{name="b",namespace="prod"} 0
`), "stacks_failing")).To(Succeed(), last.Reason)
	}

	failed.Status.LastUpdate.State = pulumiv1.StackUpdateSucceeded
	stacks.Observe(failed)
	stacks.Forget(types.NamespacedName{Namespace: "prod", Name: "b"})
	stacks.Forget(types.NamespacedName{Namespace: "prod", Name: "unknown"})
	expectSeries(g, registry, `
		resource_created_at_seconds{group="pulumi.com",kind="Stack",name="a",namespace="prod",version="v1"} 1.7e+09
		stacks_active 1
		stacks_failing{name="a",namespace="prod"} 0
		stacks_reconciling{name="a",namespace="prod"} 0`)
}

func TestStacksThatAreSuspendedOrWaitForTheirWaveAskNobodyToAct(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	stacks, err := metrics.NewStacks(registry)
	g.Expect(err).NotTo(HaveOccurred())
	suspended, waiting := stackNamed("suspended"), stackNamed("waiting")
	for _, stack := range []*pulumiv1.Stack{suspended, waiting} {
		stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateFailed}
		conditions.MarkReconciling(stack, "Progressing", "working")
	}
	conditions.MarkFalse(waiting, "Ready", pulumiv1.WaveNotOpenReason, "the new revision waits for its turn")
	suspended.Spec.Suspend = true
	stacks.Observe(suspended)
	stacks.Observe(waiting)
	expectSeries(g, registry, `
		resource_created_at_seconds{group="pulumi.com",kind="Stack",name="suspended",namespace="prod",version="v1"} 1.7e+09
		resource_created_at_seconds{group="pulumi.com",kind="Stack",name="waiting",namespace="prod",version="v1"} 1.7e+09
		stacks_active 2
		stacks_failing{name="suspended",namespace="prod"} 0
		stacks_failing{name="waiting",namespace="prod"} 1
		stacks_reconciling{name="suspended",namespace="prod"} 0
		stacks_reconciling{name="waiting",namespace="prod"} 0`)

	suspended.Spec.Suspend = false
	stacks.Observe(suspended)
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(help+`
stacks_failing{name="suspended",namespace="prod"} 1
stacks_failing{name="waiting",namespace="prod"} 1
`), "stacks_failing")).To(Succeed())
}

func TestProgramsAreCountedOnceEachUntilTheyAreGone(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	programs, err := metrics.NewPrograms(registry)
	g.Expect(err).NotTo(HaveOccurred())
	expectSeries(g, registry, `programs_active 0`)
	a, b := types.NamespacedName{Namespace: "prod", Name: "a"}, types.NamespacedName{Namespace: "prod", Name: "b"}
	for _, key := range []types.NamespacedName{a, b, a} {
		programs.Observe(key)
	}
	expectSeries(g, registry, `programs_active 2`)
	programs.Forget(b)
	programs.Forget(types.NamespacedName{Namespace: "prod", Name: "unknown"})
	expectSeries(g, registry, `programs_active 1`)
}

func TestASecondSetOfMetricsInOneRegistryIsAnError(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	_, err := metrics.NewStacks(registry)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = metrics.NewStacks(registry)
	g.Expect(err).To(MatchError(ContainSubstring("register the metrics about Stacks")))
	for range 2 {
		_, err = metrics.NewPrograms(registry)
	}
	g.Expect(err).To(MatchError(ContainSubstring("register the metrics about Programs")))
	for range 2 {
		_, err = metrics.NewUpdates(registry)
	}
	g.Expect(err).To(MatchError(ContainSubstring("register the metrics about Updates")))
	for range 2 {
		_, err = metrics.NewArtifacts(registry)
	}
	g.Expect(err).To(MatchError(ContainSubstring("register the metrics about artifacts")))
	for range 2 {
		err = metrics.RegisterAgents(registry, "pod", func() int { return 0 })
	}
	g.Expect(err).To(MatchError(ContainSubstring("register the metrics about agents")))
}
