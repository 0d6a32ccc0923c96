package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// RegisterAgents registers the gauge of the agents that run now in the named runtime. count must not wait.
func RegisterAgents(registerer prometheus.Registerer, runtime string, count func() int) error {
	return register(registerer, "agents", prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "stack_controller_agents",
		Help:        "Agents that run now: pods or processes, by the runtime of workspaces.",
		ConstLabels: prometheus.Labels{"runtime": runtime},
	}, func() float64 { return float64(count()) }))
}

// RegisterStoreSize registers the gauge of the bytes that stored artifacts take. size must not wait.
func RegisterStoreSize(registerer prometheus.Registerer, size func() int64) error {
	return register(registerer, "the store", prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "stack_controller_artifact_store_bytes",
		Help: "Bytes that the stored artifacts take.",
	}, func() float64 { return float64(size()) }))
}

// register fails when the registry has one of the metrics already.
func register(registerer prometheus.Registerer, about string, collectors ...prometheus.Collector) error {
	for _, collector := range collectors {
		if err := registerer.Register(collector); err != nil {
			return fmt.Errorf("register the metrics about %s: %w", about, err)
		}
	}
	return nil
}
