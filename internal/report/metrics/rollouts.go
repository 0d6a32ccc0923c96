package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// Rollouts are the gauges about StackRollouts: how far their waves are, and which get no further. All methods of nil do nothing.
type Rollouts struct {
	stacks                   *prometheus.GaugeVec
	halted, stalled, blocked *prometheus.GaugeVec

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
		stalled: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_rollout_stalled",
			Help: "1 when the StackRollout is Stalled, for any reason, otherwise 0.",
		}, []string{"namespace", "name"}),
		blocked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_rollout_blocked",
			Help: "1 when no Stack of the StackRollout is updated, all wait for a source, a check or each other, and it is neither halted nor Stalled; otherwise 0.",
		}, []string{"namespace", "name"}),
	}
	return r, register(registerer, "StackRollouts", r.stacks, r.halted, r.stalled, r.blocked)
}

// Observe sets the series of the StackRollout: three, and seven of each wave. They are never absent meanwhile, which would end an alert. blocked is
// whether it gets no further although it waits for no person, soak or window; the rest is in the status.
func (r *Rollouts) Observe(rollout *autov1alpha1.StackRollout, blocked bool) {
	if r == nil {
		return
	}
	is := map[string]bool{}
	for i := range rollout.Status.Waves {
		wave := &rollout.Status.Waves[i]
		is[wave.Name] = true
		for state, count := range statesOf(wave) {
			r.stacks.WithLabelValues(rollout.Namespace, rollout.Name, wave.Name, state).Set(float64(count))
		}
	}
	halted := conditions.GetReason(rollout, meta.ReadyCondition) == autov1alpha1.RolloutHaltedReason
	r.halted.WithLabelValues(rollout.Namespace, rollout.Name).Set(numeric(halted))
	r.stalled.WithLabelValues(rollout.Namespace, rollout.Name).Set(numeric(conditions.IsStalled(rollout)))
	r.blocked.WithLabelValues(rollout.Namespace, rollout.Name).Set(numeric(blocked))
	r.mu.Lock()
	defer r.mu.Unlock()
	key := types.NamespacedName{Namespace: rollout.Namespace, Name: rollout.Name}
	for wave := range r.waves[key] {
		if !is[wave] {
			r.forgetWave(key, wave)
		}
	}
	r.waves[key] = is
}

// forgetWave removes the series of a wave by all of their labels: to find them by some takes a look at those of all StackRollouts.
func (r *Rollouts) forgetWave(key types.NamespacedName, wave string) {
	for state := range statesOf(&autov1alpha1.RolloutWaveStatus{}) {
		r.stacks.DeleteLabelValues(key.Namespace, key.Name, wave, state)
	}
}

// statesOf returns how many Stacks of the wave are in each state.
func statesOf(wave *autov1alpha1.RolloutWaveStatus) map[string]int32 {
	return map[string]int32{
		"updated": wave.Updated, "unchanged": wave.Unchanged, "running": wave.Running, "waiting": wave.Waiting, "failing": wave.Failing,
		"broken_before": wave.BrokenBefore, "left_out": wave.LeftOut,
	}
}

// Forget removes the series of a StackRollout that no longer exists or belongs to another controller.
func (r *Rollouts) Forget(namespace, name string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	for wave := range r.waves[key] {
		r.forgetWave(key, wave)
	}
	delete(r.waves, key)
	for _, gauge := range []*prometheus.GaugeVec{r.halted, r.stalled, r.blocked} {
		gauge.DeleteLabelValues(namespace, name)
	}
}
