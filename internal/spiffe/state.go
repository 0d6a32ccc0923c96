package spiffe

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// state of an identity, also the value of the metric's label.
type state string

const (
	valid    state = "valid"
	expiring state = "expiring" // should have been renewed
	expired  state = "expired"  // no server accepts it

	// There was no identity yet:
	starting    state = "starting"    // the Workload API has not answered
	refused     state = "refused"     // it says that there is none for this process
	unreachable state = "unreachable" // it does not answer
	failing     state = "failing"     // what it answers is of no use
)

var states = []state{valid, expiring, expired, starting, refused, unreachable, failing}

// state returns the state at the time, and when the identity expires; the zero time when there is none.
func (i *Identity) state(now time.Time) (state, time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.current == nil {
		return withoutIdentity(i.failure), time.Time{}
	}
	svid := i.current.DefaultSVID()
	switch expires := svid.Certificates[0].NotAfter; {
	case now.After(expires):
		return expired, expires
	case now.After(renewalDue(svid)):
		return expiring, expires
	default:
		return valid, expires
	}
}

// withoutIdentity returns the state before the first identity, by what the Workload API failed with.
func withoutIdentity(failure error) state {
	switch code := grpcstatus.Code(failure); {
	case failure == nil:
		return starting
	case code == codes.PermissionDenied:
		return refused
	case code == codes.Unavailable, errors.Is(failure, errSilent):
		return unreachable
	}
	return failing
}

var (
	expiryMetric = prometheus.NewDesc("stack_controller_spiffe_identity_expiry_timestamp_seconds",
		"When the SPIFFE identity of the controller expires, in seconds since 1970; 0 when it has none.", nil, nil)
	stateMetric = prometheus.NewDesc("stack_controller_spiffe_identity",
		"The state of the SPIFFE identity of the controller: 1 for the state that it is in.", []string{"state"}, nil)
)

// Describe implements prometheus.Collector.
func (i *Identity) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- expiryMetric
	descriptions <- stateMetric
}

// Collect implements prometheus.Collector.
func (i *Identity) Collect(metrics chan<- prometheus.Metric) {
	now, expires := i.state(time.Now())
	seconds := 0.0
	if !expires.IsZero() {
		seconds = float64(expires.Unix())
	}
	metrics <- prometheus.MustNewConstMetric(expiryMetric, prometheus.GaugeValue, seconds)
	for _, known := range states {
		value := 0.0
		if known == now {
			value = 1
		}
		metrics <- prometheus.MustNewConstMetric(stateMetric, prometheus.GaugeValue, value, string(known))
	}
}
