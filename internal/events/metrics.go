package events

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// registerMetrics returns the counter of notifications; it is shared by all Recorders of one registry.
func registerMetrics(registerer prometheus.Registerer) (*prometheus.CounterVec, error) {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "stack_controller_notifications_total",
		Help: "Notifications for notification-controller, by how their delivery ended.",
	}, []string{"outcome"})
	if registerer != nil {
		var registered prometheus.AlreadyRegisteredError
		err := registerer.Register(counter)
		switch {
		case errors.As(err, &registered):
			counter = registered.ExistingCollector.(*prometheus.CounterVec)
		case err != nil:
			return nil, fmt.Errorf("register the metrics of the event recorder: %w", err)
		}
	}
	for _, result := range outcomes {
		counter.WithLabelValues(string(result))
	}
	return counter, nil
}
