package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Origin is where an artifact comes from.
type Origin string

const (
	// Downloaded is an artifact that a source serves.
	Downloaded Origin = "download"
	// Made is an artifact that the controller packs itself: a checkout of a git repository, or a Program.
	Made Origin = "make"
)

// Artifacts are the metrics about the store of artifacts. All methods of nil do nothing.
type Artifacts struct {
	fetches  *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	requests *prometheus.CounterVec
}

// NewArtifacts registers the metrics. It fails when the registry has them already.
func NewArtifacts(registerer prometheus.Registerer) (*Artifacts, error) {
	a := &Artifacts{
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_controller_artifact_fetches_total",
			Help: "Artifacts that were downloaded or made, by origin and result.",
		}, []string{"origin", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_controller_artifact_fetched_bytes_total",
			Help: "Bytes of the artifacts that were downloaded or made and stored.",
		}, []string{"origin"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_controller_artifact_store_requests_total",
			Help: "Deliveries to agents out of the store: a miss had the artifact fetched, a hit shares what was fetched earlier.",
		}, []string{"result"}),
	}
	for _, origin := range []Origin{Downloaded, Made} {
		a.bytes.WithLabelValues(string(origin))
		for _, result := range []string{"success", "failure"} {
			a.fetches.WithLabelValues(string(origin), result)
		}
	}
	for _, result := range []string{"hit", "miss"} {
		a.requests.WithLabelValues(result)
	}
	return a, register(registerer, "artifacts", a.fetches, a.bytes, a.requests)
}

// Fetched counts an attempt to fetch an artifact of so many bytes.
func (a *Artifacts) Fetched(origin Origin, bytes int64, err error) {
	switch {
	case a == nil:
	case err != nil:
		a.fetches.WithLabelValues(string(origin), "failure").Inc()
	default:
		a.fetches.WithLabelValues(string(origin), "success").Inc()
		a.bytes.WithLabelValues(string(origin)).Add(float64(bytes))
	}
}

// Used counts the use of a stored artifact. first says that it was fetched for this use.
func (a *Artifacts) Used(first bool) {
	switch {
	case a == nil:
	case first:
		a.requests.WithLabelValues("miss").Inc()
	default:
		a.requests.WithLabelValues("hit").Inc()
	}
}
