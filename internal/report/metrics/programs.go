package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Programs is the gauge of the Programs that exist. It depends only on the reconciled objects, see Stacks. All methods of nil do nothing.
type Programs struct {
	active prometheus.Gauge

	mu    sync.Mutex
	known map[types.NamespacedName]struct{}
}

// NewPrograms registers the gauge. It fails when the registry has it already.
func NewPrograms(registerer prometheus.Registerer) (*Programs, error) {
	p := &Programs{
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "programs_active",
			Help: "Number of Programs that this controller looks after.",
		}),
		known: map[types.NamespacedName]struct{}{},
	}
	return p, register(registerer, "Programs", p.active)
}

// Observe counts the Program, if it is not counted yet.
func (p *Programs) Observe(key types.NamespacedName) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[key] = struct{}{}
	p.active.Set(float64(len(p.known)))
}

// Forget stops counting a Program that no longer exists or belongs to another controller.
func (p *Programs) Forget(key types.NamespacedName) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, key)
	p.active.Set(float64(len(p.known)))
}
