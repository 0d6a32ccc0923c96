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

// Phase names what an Update waits for, or what it does.
type Phase string

const (
	// PhaseWorkspace is the wait for the Workspace and its agent.
	PhaseWorkspace Phase = "workspace"
	// PhaseQueue is the wait for an earlier Update of the Workspace, or for a turn when the number of operations is limited.
	PhaseQueue Phase = "queue"
	// PhaseFetch is the fetch of the artifact into the store.
	PhaseFetch Phase = "fetch"
	// PhaseDelivery is the delivery of the artifact to the agent.
	PhaseDelivery Phase = "delivery"
	// PhaseOther is the wait for something else, for example a Secret.
	PhaseOther Phase = "other"
	// phasePrepare is what the agent does before it runs pulumi: it installs dependencies and configures the stack.
	phasePrepare Phase = "prepare"
	// phaseRun is the time in which pulumi runs. The controller does not know the phase of an operation that has not ended, so that counts as
	// phaseRun.
	phaseRun Phase = "run"
)

// waits are the phases before the operation starts, in the usual order.
var waits = []Phase{PhaseWorkspace, PhaseQueue, PhaseFetch, PhaseDelivery, PhaseOther}

// kinds and results are the values of labels. An unknown type, which the API server should have rejected, gets the kind "unknown".
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
	known map[types.NamespacedName]*phaseRecord
}

// phaseRecord records the phases of an Update so far.
type phaseRecord struct {
	uid   types.UID
	phase Phase
	since time.Time
	// segments are the phases before the current one, without those that an earlier controller process saw.
	segments []Segment
	// waited is how long the Update was in each phase before the current one; nil when an earlier controller process saw its beginning, and
	// after the start.
	waited map[Phase]time.Duration
}

// Segment is a period in which an Update was in one phase.
type Segment struct {
	Phase      Phase
	Start, End time.Time
}

// maxSegments is how many segments are kept of an Update, which may alternate between waits.
const maxSegments = 32

// Observer receives each Update that ended, with the time spent in each phase.
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
		known: map[types.NamespacedName]*phaseRecord{},
	}
	for _, kind := range kinds {
		for _, result := range results {
			u.ended.WithLabelValues(string(kind), resultLabel(result))
		}
		u.ended.WithLabelValues(string(kind), resultLocked)
		u.ended.WithLabelValues(string(kind), resultAwaiting)
	}
	return u, register(registerer, "Updates", u.ended, u.durations, u)
}

// Waiting records that the Update waits in a phase before its start. since is when the wait began, if an earlier controller process has
// recorded that; zero means now.
func (u *Updates) Waiting(update *autov1alpha1.Update, phase Phase, since time.Time) {
	if u != nil {
		u.enter(update, phase, since)
	}
}

// Started records that the agent has accepted the operation, and observes the durations of the phases before.
func (u *Updates) Started(update *autov1alpha1.Update) {
	if u == nil {
		return
	}
	for phase, took := range u.enter(update, phaseRun, time.Time{}) {
		u.durations.WithLabelValues(kindLabel(update), string(phase)).Observe(took.Seconds())
	}
}

// Running records that the operation runs since the start in the status, which an earlier controller process may have recorded.
func (u *Updates) Running(update *autov1alpha1.Update) {
	if u != nil && update.Status.StartTime != nil {
		u.enter(update, phaseRun, update.Status.StartTime.Time)
	}
}

// enter records the phase. When the operation starts, it returns how long the Update was in each phase before; nil when that is not known.
func (u *Updates) enter(update *autov1alpha1.Update, phase Phase, since time.Time) map[Phase]time.Duration {
	now := time.Now()
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Name}
	u.mu.Lock()
	defer u.mu.Unlock()
	current := u.known[key]
	if current == nil || current.uid != update.UID {
		current = &phaseRecord{uid: update.UID, phase: phase, since: now}
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
	current.waited = nil // they are returned only once
	return waited
}

// Took is how long an operation took, in total, and pulumi alone. Both are zero when there was no operation, and Run is zero when pulumi
// did not run.
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
	u.ended.WithLabelValues(kind, resultOf(update)).Inc()
	// The durations come from the agent, which may report anything.
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

// phases returns the segments of an Update that ends now. total is the duration of its operation, and run that of pulumi.
func (w *phaseRecord) phases(update *autov1alpha1.Update, total, run time.Duration) (segments []Segment) {
	if w != nil && w.uid == update.UID {
		segments = w.segments
	}
	if total == 0 || update.Status.StartTime == nil {
		return segments
	}
	// The start in the status is known only to the second. The operation began when the last wait was over.
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

// Forget drops what is known of an Update that no longer exists.
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

// Results that are failures for those who read an Update, and ask nobody to act: it is repeated when the other process has ended, or when the resources
// have become ready.
const resultLocked, resultAwaiting = "locked", "awaiting"

func resultOf(update *autov1alpha1.Update) string {
	switch {
	case update.WasLockedOut():
		return resultLocked
	case update.AwaitsResources():
		return resultAwaiting
	}
	return resultLabel(update.Status.State)
}

func resultLabel(state autov1alpha1.UpdateState) string {
	return strings.ToLower(string(cmp.Or(state, autov1alpha1.UpdateStateFailed)))
}
