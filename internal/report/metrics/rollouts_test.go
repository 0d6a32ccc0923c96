package metrics_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

func TestRolloutsHaveASeriesForEachWaveThatExists(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	rollouts, err := metrics.NewRollouts(registry)
	g.Expect(err).NotTo(HaveOccurred())
	rollout := &autov1alpha1.StackRollout{Namespace: "platform", Name: "fleet"}
	rollout.Status.Waves = []autov1alpha1.RolloutWaveStatus{{Name: "canary", Updated: 3}, {Name: "rest", Waiting: 7}}
	rollouts.Observe(rollout)
	count, err := testutil.GatherAndCount(registry, "stack_rollout_stacks")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(count).To(Equal(14))

	// A series that is absent for a moment ends an alert.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 2000 {
			rollouts.Observe(rollout)
		}
	}()
	for observing := true; observing; {
		select {
		case <-ended:
			observing = false
		default:
		}
		g.Expect(testutil.GatherAndCount(registry, "stack_rollout_stacks", "stack_rollout_halted")).To(Equal(2*7 + 1))
	}
	conditions.MarkFalse(rollout, meta.ReadyCondition, autov1alpha1.RolloutHaltedReason, "one failed")
	rollout.Status.Waves = []autov1alpha1.RolloutWaveStatus{{Name: "all", Updated: 2, Failing: 1, Waiting: 7}}
	rollouts.Observe(rollout)
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
`))).To(Succeed())

	rollouts.Forget("platform", "fleet")
	g.Expect(testutil.GatherAndCount(registry)).To(BeZero())
}
