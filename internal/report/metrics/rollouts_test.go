package metrics_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

func TestRolloutsHaveASeriesForEachWaveThatExists(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	rollouts, err := metrics.NewRollouts(registry)
	g.Expect(err).NotTo(HaveOccurred())
	rollout := &autov1alpha1.StackRollout{Namespace: "platform", Name: "fleet"}
	rollout.Status.Waves = []autov1alpha1.RolloutWaveStatus{{Name: "canary", Updated: 3}, {Name: "rest", Waiting: 7}}
	rollouts.Observe(rollout, false)
	count, err := testutil.GatherAndCount(registry, "stack_rollout_stacks")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(count).To(Equal(14))

	// A series that is absent for a moment ends an alert.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 2000 {
			rollouts.Observe(rollout, false)
		}
	}()
	for observing := true; observing; {
		select {
		case <-ended:
			observing = false
		default:
		}
		g.Expect(testutil.GatherAndCount(registry, "stack_rollout_stacks", "stack_rollout_halted", "stack_rollout_stalled", "stack_rollout_blocked")).
			To(Equal(2*7 + 3))
	}
	conditions.MarkFalse(rollout, meta.ReadyCondition, autov1alpha1.RolloutHaltedReason, "one failed")
	rollout.Status.Waves = []autov1alpha1.RolloutWaveStatus{{Name: "all", Updated: 2, Failing: 1, Waiting: 7}}
	rollouts.Observe(rollout, false)
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP stack_rollout_halted 1 when too many Stacks of the StackRollout failed for others to be updated, otherwise 0.
# TYPE stack_rollout_halted gauge
stack_rollout_halted{name="fleet",namespace="platform"} 1
# HELP stack_rollout_stacks Stacks of a wave of the StackRollout, by how far they are with its target.
# TYPE stack_rollout_stacks gauge
stack_rollout_stacks{name="fleet",namespace="platform",state="broken_before",wave="all"} 0
stack_rollout_stacks{name="fleet",namespace="platform",state="failing",wave="all"} 1
stack_rollout_stacks{name="fleet",namespace="platform",state="left_out",wave="all"} 0
stack_rollout_stacks{name="fleet",namespace="platform",state="running",wave="all"} 0
stack_rollout_stacks{name="fleet",namespace="platform",state="unchanged",wave="all"} 0
stack_rollout_stacks{name="fleet",namespace="platform",state="updated",wave="all"} 2
stack_rollout_stacks{name="fleet",namespace="platform",state="waiting",wave="all"} 7
`), "stack_rollout_halted", "stack_rollout_stacks")).To(Succeed())

	rollouts.Forget("platform", "fleet")
	g.Expect(testutil.GatherAndCount(registry)).To(BeZero())
}

func TestRolloutsThatGetNoFurtherHaveASeriesThatSaysSo(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	rollouts, err := metrics.NewRollouts(registry)
	g.Expect(err).NotTo(HaveOccurred())
	rollout := &autov1alpha1.StackRollout{Namespace: "platform", Name: "fleet"}
	expect := func(halted, stalled, blocked int) {
		t.Helper()
		g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`
# HELP stack_rollout_blocked 1 when no Stack of the StackRollout is updated, all wait for a source, a check or each other, and it is neither halted nor Stalled; otherwise 0.
# TYPE stack_rollout_blocked gauge
stack_rollout_blocked{name="fleet",namespace="platform"} %d
# HELP stack_rollout_halted 1 when too many Stacks of the StackRollout failed for others to be updated, otherwise 0.
# TYPE stack_rollout_halted gauge
stack_rollout_halted{name="fleet",namespace="platform"} %d
# HELP stack_rollout_stalled 1 when the StackRollout is Stalled, for any reason, otherwise 0.
# TYPE stack_rollout_stalled gauge
stack_rollout_stalled{name="fleet",namespace="platform"} %d
`, blocked, halted, stalled)))).To(Succeed())
	}
	conditions.MarkTrue(rollout, meta.ReadyCondition, autov1alpha1.RolloutProgressingReason, "goes on")
	rollouts.Observe(rollout, false)
	expect(0, 0, 0)
	rollouts.Observe(rollout, true)
	expect(0, 0, 1)
	conditions.MarkFalse(rollout, meta.ReadyCondition, autov1alpha1.RolloutHaltedReason, "one failed")
	rollouts.Observe(rollout, false)
	expect(1, 0, 0)
	conditions.MarkStalled(rollout, autov1alpha1.RolloutHaltedReason, "one failed")
	rollouts.Observe(rollout, false)
	expect(1, 1, 0)
	conditions.MarkFalse(rollout, meta.ReadyCondition, pulumiv1.SpecInvalidReason, "no such time zone")
	conditions.MarkStalled(rollout, pulumiv1.SpecInvalidReason, "no such time zone")
	rollouts.Observe(rollout, false)
	expect(0, 1, 0)
}
