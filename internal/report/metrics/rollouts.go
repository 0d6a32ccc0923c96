package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// Rollouts are the gauges about StackRollouts: how far their waves are, and which are halted. They depend only on the statuses, see Stacks. All
// methods of nil do nothing.
type Rollouts struct {
	stacks *prometheus.GaugeVec
	halted *prometheus.GaugeVec
}

// NewRollouts registers the gauges. It fails when the registry has them already.
func NewRollouts(registerer prometheus.Registerer) (*Rollouts, error) {
	r := &Rollouts{
		stacks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_rollout_stacks",
			Help: "Stacks of a wave of the StackRollout, by how far they are with its target.",
		}, []string{"namespace", "name", "wave", "state"}),
		halted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_rollout_halted",
			Help: "1 when too many Stacks of the StackRollout failed for others to be updated, otherwise 0.",
		}, []string{"namespace", "name"}),
	}
	return r, register(registerer, "StackRollouts", r.stacks, r.halted)
}

// Observe sets the series of the StackRollout, of which each wave has seven.
func (r *Rollouts) Observe(rollout *autov1alpha1.StackRollout) {
	if r == nil {
		return
	}
	r.Forget(rollout.Namespace, rollout.Name) // waves may be gone
	for i := range rollout.Status.Waves {
		wave := &rollout.Status.Waves[i]
		for state, count := range map[string]int32{
			"updated": wave.Updated, "unchanged": wave.Unchanged, "running": wave.Running, "waiting": wave.Waiting, "failing": wave.Failing,
			"broken_before": wave.BrokenBefore, "left_out": wave.LeftOut,
		} {
			r.stacks.WithLabelValues(rollout.Namespace, rollout.Name, wave.Name, state).Set(float64(count))
		}
	}
	halted := conditions.GetReason(rollout, meta.ReadyCondition) == autov1alpha1.RolloutHaltedReason
	r.halted.WithLabelValues(rollout.Namespace, rollout.Name).Set(numeric(halted))
}

// Forget removes the series of a StackRollout that no longer exists or belongs to another controller.
func (r *Rollouts) Forget(namespace, name string) {
	if r == nil {
		return
	}
	labels := prometheus.Labels{"namespace": namespace, "name": name}
	r.stacks.DeletePartialMatch(labels)
	r.halted.DeletePartialMatch(labels)
}
