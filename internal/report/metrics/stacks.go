// Package metrics holds the metrics about the controller's objects.
package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Stacks are the gauges about Stacks: how many there are and since when, which ones fail, and which ones are being reconciled. They depend
// only on the reconciled objects, so they are right again as soon as a restarted controller has seen every Stack.
type Stacks struct {
	active      prometheus.Gauge
	failing     *prometheus.GaugeVec
	reconciling *prometheus.GaugeVec
	drifted     *prometheus.GaugeVec
	created     *prometheus.GaugeVec

	mu    sync.Mutex
	known map[types.NamespacedName]struct{}
}

// NewStacks registers the gauges. It fails when the registry has them already.
func NewStacks(registerer prometheus.Registerer) (*Stacks, error) {
	labels := []string{"namespace", "name"}
	s := &Stacks{
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stacks_active",
			Help: "Number of Stacks that this controller looks after.",
		}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stacks_failing",
			Help: "1 when the last update of the Stack failed and the Stack is not suspended, otherwise 0: also when another process has the lock, or resources are not ready yet.",
		}, labels),
		reconciling: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stacks_reconciling",
			Help: "1 when the Stack is not yet what its spec and source ask for and the controller works on it, otherwise 0: also when it is suspended or waits for its wave.",
		}, labels),
		drifted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stacks_drifted",
			Help: "1 when resources of the Stack were changed outside of Pulumi, 0 when not; absent for a Stack that does not look for drift.",
		}, labels),
		// The name and the labels are those of the Operator SDK, with which the Pulumi Kubernetes Operator is built.
		created: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "resource_created_at_seconds",
			Help: "When the Stack was created, in seconds since the beginning of 1970.",
		}, []string{"group", "version", "kind", "namespace", "name"}),
		known: map[types.NamespacedName]struct{}{},
	}
	return s, register(registerer, "Stacks", s.active, s.failing, s.reconciling, s.drifted, s.created)
}

// Observe sets the series of the Stack. A Stack that somebody has suspended, or that waits for its wave, asks nobody to act.
func (s *Stacks) Observe(stack *pulumiv1.Stack) {
	key := types.NamespacedName{Namespace: stack.Namespace, Name: stack.Name}
	last := stack.Status.LastUpdate
	failed := last != nil && last.State == pulumiv1.StackUpdateFailed && last.Conflicts == 0 && last.Reason != autov1alpha1.AwaitingResourcesReason

	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[key] = struct{}{}
	s.active.Set(float64(len(s.known)))
	waits := stack.Spec.Suspend || conditions.GetReason(stack, meta.ReadyCondition) == pulumiv1.WaveNotOpenReason
	s.failing.WithLabelValues(key.Namespace, key.Name).Set(numeric(failed && !stack.Spec.Suspend))
	s.reconciling.WithLabelValues(key.Namespace, key.Name).Set(numeric(conditions.IsTrue(stack, meta.ReconcilingCondition) && !waits))
	s.created.WithLabelValues(createdLabels(key)...).Set(float64(stack.CreationTimestamp.Unix()))
	if conditions.Has(stack, pulumiv1.DriftedCondition) {
		s.drifted.WithLabelValues(key.Namespace, key.Name).Set(numeric(conditions.IsTrue(stack, pulumiv1.DriftedCondition)))
	} else {
		s.drifted.DeleteLabelValues(key.Namespace, key.Name)
	}
}

// Forget removes the series of a Stack that no longer exists.
func (s *Stacks) Forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
	s.active.Set(float64(len(s.known)))
	s.failing.DeleteLabelValues(key.Namespace, key.Name)
	s.reconciling.DeleteLabelValues(key.Namespace, key.Name)
	s.drifted.DeleteLabelValues(key.Namespace, key.Name)
	s.created.DeleteLabelValues(createdLabels(key)...)
}

// createdLabels are the values of the labels of the metric about the creation of a Stack.
func createdLabels(key types.NamespacedName) []string {
	return []string{pulumiv1.GroupVersion.Group, pulumiv1.GroupVersion.Version, pulumiv1.StackKind, key.Namespace, key.Name}
}

func numeric(value bool) float64 {
	if value {
		return 1
	}
	return 0
}
