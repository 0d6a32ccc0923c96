package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// Rollouts are the gauges about StackRollouts: how far their waves are, and which are halted. They depend only on the statuses, see Stacks. All
// methods of nil do nothing.
type Rollouts struct {
	stacks *prometheus.GaugeVec
	halted *prometheus.GaugeVec

	mu sync.Mutex
	// waves are those of each StackRollout that have series.
	waves map[types.NamespacedName]map[string]bool
}

// NewRollouts registers the gauges. It fails when the registry has them already.
func NewRollouts(registerer prometheus.Registerer) (*Rollouts, error) {
	r := &Rollouts{
		waves: map[types.NamespacedName]map[string]bool{},
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

// Observe sets the series of the StackRollout, of which each wave has seven. They are never absent meanwhile, which would end an alert.
func (r *Rollouts) Observe(rollout *autov1alpha1.StackRollout) {
	if r == nil {
		return
	}
	is := map[string]bool{}
	for i := range rollout.Status.Waves {
		wave := &rollout.Status.Waves[i]
		is[wave.Name] = true
		for state, count := range map[string]int32{
			"updated": wave.Updated, "unchanged": wave.Unchanged, "running": wave.Running, "waiting": wave.Waiting, "failing": wave.Failing,
			"broken_before": wave.BrokenBefore, "left_out": wave.LeftOut,
		} {
			r.stacks.WithLabelValues(rollout.Namespace, rollout.Name, wave.Name, state).Set(float64(count))
		}
	}
	halted := conditions.GetReason(rollout, meta.ReadyCondition) == autov1alpha1.RolloutHaltedReason
	r.halted.WithLabelValues(rollout.Namespace, rollout.Name).Set(numeric(halted))
	r.mu.Lock()
	defer r.mu.Unlock()
	key := types.NamespacedName{Namespace: rollout.Namespace, Name: rollout.Name}
	for wave := range r.waves[key] {
		if !is[wave] {
			r.stacks.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "name": key.Name, "wave": wave})
		}
	}
	r.waves[key] = is
}

// Forget removes the series of a StackRollout that no longer exists or belongs to another controller.
func (r *Rollouts) Forget(namespace, name string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waves, types.NamespacedName{Namespace: namespace, Name: name})
	labels := prometheus.Labels{"namespace": namespace, "name": name}
	r.stacks.DeletePartialMatch(labels)
	r.halted.DeletePartialMatch(labels)
}
