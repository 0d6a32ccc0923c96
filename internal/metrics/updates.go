package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// Phase is a part of the way of an Update.
type Phase string

const (
	// PhaseWorkspace waits for the Workspace and its agent.
	PhaseWorkspace Phase = "workspace"
	// PhaseQueue waits for an earlier Update of the Workspace, or for a turn when the number of operations is limited.
	PhaseQueue Phase = "queue"
	// PhaseFetch brings the artifact into the store.
	PhaseFetch Phase = "fetch"
	// PhaseDelivery brings the artifact to the agent.
	PhaseDelivery Phase = "delivery"
	// PhaseOther waits for something else, for example a Secret.
	PhaseOther Phase = "other"
	// phasePrepare is what the agent does before it runs pulumi: it installs dependencies and configures the stack.
	phasePrepare Phase = "prepare"
	// phaseRun is pulumi at work. Of an operation that has not ended nobody knows where it is, so that it counts as phaseRun.
	phaseRun Phase = "run"
)

// waits are the phases before the operation starts, in the usual order.
var waits = []Phase{PhaseWorkspace, PhaseQueue, PhaseFetch, PhaseDelivery, PhaseOther}

// kinds and results are the values of labels. What the API server should have refused has the kind "unknown".
var (
	kinds = []autov1alpha1.UpdateType{
		autov1alpha1.UpdateTypePreview, autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypeRefresh, autov1alpha1.UpdateTypeDestroy,
	}
	results = []autov1alpha1.UpdateState{
		autov1alpha1.UpdateStateSucceeded, autov1alpha1.UpdateStateFailed, autov1alpha1.UpdateStateInterrupted, autov1alpha1.UpdateStateCancelled,
	}
)

// Updates are the metrics about Updates: how they ended, how long their phases took, and how many are in which phase now. No label names
// an object. All methods of nil do nothing.
type Updates struct {
	ended     *prometheus.CounterVec
	durations *prometheus.HistogramVec
	count     *prometheus.Desc
	oldest    *prometheus.Desc
	observers []Observer

	mu sync.Mutex
	// known has the Updates that are not complete.
	known map[types.NamespacedName]*way
}

// way is how far an Update has come.
type way struct {
	uid   types.UID
	phase Phase
	since time.Time
	// segments are the phases before this one, without those that a controller before this one saw.
	segments []Segment
	// waited is how long it was in the phases before this one. Nil when a controller before this one saw the beginning.
	waited map[Phase]time.Duration
}

// Segment is a time that an Update was in a phase.
type Segment struct {
	Phase      Phase
	Start, End time.Time
}

// maxSegments is how many segments are kept of an Update: one may wait in turn for this and that.
const maxSegments = 32

// Observer is told of each Update that ended, and where its time went.
type Observer interface {
	Ended(update *autov1alpha1.Update, phases []Segment)
}

// NewUpdates registers the metrics. It fails when the registry has them already.
func NewUpdates(registerer prometheus.Registerer, observers ...Observer) (*Updates, error) {
	u := &Updates{
		observers: observers,
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_controller_updates_total",
			Help: "Updates that ended, by kind and result.",
		}, []string{"kind", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stack_controller_update_phase_duration_seconds",
			Help:    "How long the phases of Updates took. A phase that an Update did not have counts as zero.",
			Buckets: []float64{0.1, 1, 5, 15, 60, 300, 900, 3600},
		}, []string{"kind", "phase"}),
		count: prometheus.NewDesc("stack_controller_updates_in_phase",
			"Updates that are in the phase now.", []string{"phase"}, nil),
		oldest: prometheus.NewDesc("stack_controller_updates_in_phase_oldest_seconds",
			"For how long the Update that entered the phase first has been in it; 0 without one.", []string{"phase"}, nil),
		known: map[types.NamespacedName]*way{},
	}
	for _, kind := range kinds {
		for _, result := range results {
			u.ended.WithLabelValues(string(kind), resultLabel(result))
		}
	}
	return u, register(registerer, "Updates", u.ended, u.durations, u)
}

// Waiting notes that the Update waits in a phase before its start. since is when it began to, as far as a controller before this one
// has recorded it; zero means now.
func (u *Updates) Waiting(update *autov1alpha1.Update, phase Phase, since time.Time) {
	if u != nil {
		u.enter(update, phase, since)
	}
}

// Started notes that the agent has accepted the operation, and observes what came before.
func (u *Updates) Started(update *autov1alpha1.Update) {
	if u == nil {
		return
	}
	for phase, took := range u.enter(update, phaseRun, time.Time{}) {
		u.durations.WithLabelValues(kindLabel(update), string(phase)).Observe(took.Seconds())
	}
}

// Running notes that the operation runs, since the start in the status, which may have been recorded by a controller before this one.
func (u *Updates) Running(update *autov1alpha1.Update) {
	if u != nil && update.Status.StartTime != nil {
		u.enter(update, phaseRun, update.Status.StartTime.Time)
	}
}

// enter notes the phase. It returns how long an Update that starts was in each phase before; nothing when that is not known.
func (u *Updates) enter(update *autov1alpha1.Update, phase Phase, since time.Time) map[Phase]time.Duration {
	now := time.Now()
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Name}
	u.mu.Lock()
	defer u.mu.Unlock()
	current := u.known[key]
	if current == nil || current.uid != update.UID {
		current = &way{uid: update.UID, phase: phase, since: now}
		if since.IsZero() {
			current.waited = map[Phase]time.Duration{}
			for _, wait := range waits {
				current.waited[wait] = 0
			}
		} else {
			current.since = since
		}
		u.known[key] = current
	}
	if current.phase != phase {
		if current.waited != nil {
			current.waited[current.phase] += now.Sub(current.since)
		}
		if len(u.observers) > 0 && len(current.segments) < maxSegments {
			current.segments = append(current.segments, Segment{current.phase, current.since, now})
		}
		current.phase, current.since = phase, now
	}
	if phase != phaseRun {
		return nil
	}
	waited := current.waited
	current.waited = nil // once
	return waited
}

// Took is how long an operation took, in all and pulumi alone. They are zero when there was none, or when pulumi did not run.
type Took struct{ Total, Run time.Duration }

// Ended counts a complete Update by its state, and observes how long its operation took.
func (u *Updates) Ended(update *autov1alpha1.Update, took Took) {
	if u == nil {
		return
	}
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Name}
	u.mu.Lock()
	known := u.known[key]
	delete(u.known, key)
	u.mu.Unlock()
	kind := kindLabel(update)
	u.ended.WithLabelValues(kind, resultLabel(update.Status.State)).Inc()
	// What agents say counts within bounds.
	run := min(max(took.Run, 0), max(took.Total, 0))
	if took.Total > 0 {
		u.durations.WithLabelValues(kind, string(phasePrepare)).Observe((took.Total - run).Seconds())
	}
	if run > 0 {
		u.durations.WithLabelValues(kind, string(phaseRun)).Observe(run.Seconds())
	}
	for _, observer := range u.observers {
		observer.Ended(update, known.phases(update, max(took.Total, 0), run))
	}
}

// phases are those of an Update that ends now, whose operation took so long in all and in pulumi.
func (w *way) phases(update *autov1alpha1.Update, total, run time.Duration) (segments []Segment) {
	if w != nil && w.uid == update.UID {
		segments = w.segments
	}
	if total == 0 || update.Status.StartTime == nil {
		return segments
	}
	// The status has seconds. The operation began when the last wait was over.
	start := update.Status.StartTime.Time
	if len(segments) > 0 {
		start = segments[len(segments)-1].End
	} else if w != nil && w.uid == update.UID && w.phase == phaseRun {
		start = w.since
	}
	running := start.Add(total - run)
	segments = append(slices.Clone(segments), Segment{phasePrepare, start, running})
	if run > 0 {
		segments = append(segments, Segment{phaseRun, running, running.Add(run)})
	}
	return segments
}

// Forget drops what is known of an Update that is gone.
func (u *Updates) Forget(key types.NamespacedName) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.known, key)
}

// Describe implements prometheus.Collector.
func (u *Updates) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- u.count
	descriptions <- u.oldest
}

// Collect implements prometheus.Collector.
func (u *Updates) Collect(metrics chan<- prometheus.Metric) {
	now := time.Now()
	count, oldest := map[Phase]int{}, map[Phase]time.Duration{}
	u.mu.Lock()
	for _, current := range u.known {
		count[current.phase]++
		oldest[current.phase] = max(oldest[current.phase], now.Sub(current.since))
	}
	u.mu.Unlock()
	for _, phase := range append(slices.Clone(waits), phaseRun) {
		metrics <- prometheus.MustNewConstMetric(u.count, prometheus.GaugeValue, float64(count[phase]), string(phase))
		metrics <- prometheus.MustNewConstMetric(u.oldest, prometheus.GaugeValue, oldest[phase].Seconds(), string(phase))
	}
}

func kindLabel(update *autov1alpha1.Update) string {
	if slices.Contains(kinds, update.Spec.Type) {
		return string(update.Spec.Type)
	}
	return "unknown"
}

func resultLabel(state autov1alpha1.UpdateState) string {
	return strings.ToLower(string(cmp.Or(state, autov1alpha1.UpdateStateFailed)))
}
