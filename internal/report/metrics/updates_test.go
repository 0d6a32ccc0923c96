package metrics_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

// values returns the values of the series of a metric. The key is the values of the labels, joined by a slash. The value of a histogram is
// its count.
func values(g Gomega, registry *prometheus.Registry, name string) map[string]float64 {
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	series := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			value := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			series[strings.Join(labels, "/")] = value
		}
	}
	return series
}

// nonZero leaves out the series that are zero, because they exist before anything is counted.
func nonZero(series map[string]float64) map[string]float64 {
	maps.DeleteFunc(series, func(_ string, value float64) bool { return value == 0 })
	return series
}

func newUpdates(t *testing.T) (*WithT, *prometheus.Registry, *metrics.Updates) {
	g, registry := NewWithT(t), prometheus.NewRegistry()
	updates, err := metrics.NewUpdates(registry)
	g.Expect(err).NotTo(HaveOccurred())
	return g, registry, updates
}

func updateNamed(name string, kind autov1alpha1.UpdateType) *autov1alpha1.Update {
	return &autov1alpha1.Update{
		Namespace: "prod", Name: name, UID: types.UID(name),
		Spec: autov1alpha1.UpdateSpec{Type: kind},
	}
}

func ended(update *autov1alpha1.Update, state autov1alpha1.UpdateState) *autov1alpha1.Update {
	update.Status.State = state
	return update
}

const (
	total     = "stack_controller_updates_total"
	durations = "stack_controller_update_phase_duration_seconds"
	inPhase   = "stack_controller_updates_in_phase"
	oldest    = "stack_controller_updates_in_phase_oldest_seconds"
)

func TestUpdatesAreCountedByKindAndResult(t *testing.T) {
	g, registry, updates := newUpdates(t)
	g.Expect(values(g, registry, total)).To(And(HaveLen(24), HaveEach(BeZero())), "a rate needs the zero before the first one")

	updates.Ended(ended(updateNamed("a", autov1alpha1.UpdateTypeUp), autov1alpha1.UpdateStateSucceeded), metrics.Took{Total: 3 * time.Second, Run: time.Second})
	updates.Ended(ended(updateNamed("b", autov1alpha1.UpdateTypeUp), autov1alpha1.UpdateStateFailed), metrics.Took{Total: time.Second})
	updates.Ended(ended(updateNamed("c", autov1alpha1.UpdateTypeDestroy), autov1alpha1.UpdateStateInterrupted), metrics.Took{})
	updates.Ended(ended(updateNamed("d", "everything"), autov1alpha1.UpdateStateFailed), metrics.Took{})
	for _, reason := range []string{autov1alpha1.UpdateConflictReason, autov1alpha1.AwaitingResourcesReason} {
		update := ended(updateNamed(reason, autov1alpha1.UpdateTypeUp), autov1alpha1.UpdateStateFailed)
		update.Status.Conditions = []metav1.Condition{
			{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}, {Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionTrue, Reason: reason}}
		updates.Ended(update, metrics.Took{})
	}
	g.Expect(nonZero(values(g, registry, total))).To(Equal(map[string]float64{
		"up/succeeded": 1, "up/failed": 1, "destroy/interrupted": 1, "unknown/failed": 1, "up/locked": 1, "up/awaiting": 1,
	}))
	g.Expect(values(g, registry, durations)).To(Equal(map[string]float64{"up/prepare": 2, "up/run": 1}), "what did not run has no duration")
}

func TestPhasesBeforeTheStartAreObservedWithIt(t *testing.T) {
	g, registry, updates := newUpdates(t)
	update := updateNamed("a", autov1alpha1.UpdateTypeUp)
	updates.Waiting(update, metrics.PhaseWorkspace, time.Time{})
	g.Expect(nonZero(values(g, registry, inPhase))).To(Equal(map[string]float64{"workspace": 1}))
	updates.Waiting(update, metrics.PhaseQueue, time.Time{})
	g.Eventually(func() map[string]float64 { return nonZero(values(g, registry, oldest)) }).Should(And(HaveLen(1), HaveKey("queue")))
	g.Expect(values(g, registry, durations)).To(BeEmpty())

	updates.Started(update)
	phases := []string{"up/delivery", "up/fetch", "up/other", "up/queue", "up/workspace"}
	g.Expect(slices.Sorted(maps.Keys(values(g, registry, durations)))).To(Equal(phases))
	updates.Started(update)
	g.Expect(values(g, registry, durations)).To(HaveEach(1.0), "once for each Update")
	g.Expect(nonZero(values(g, registry, inPhase))).To(Equal(map[string]float64{"run": 1}))

	updates.Started(updateNamed("at once", autov1alpha1.UpdateTypeUp))
	g.Expect(values(g, registry, durations)).To(HaveEach(2.0), "who did not wait counts, too")
	updates.Ended(ended(update, autov1alpha1.UpdateStateSucceeded), metrics.Took{})
	updates.Forget(types.NamespacedName{Namespace: "prod", Name: "at once"})
	g.Expect(values(g, registry, inPhase)).To(And(HaveLen(6), HaveEach(BeZero())))
	g.Expect(values(g, registry, oldest)).To(And(HaveLen(6), HaveEach(BeZero())))
}

func TestAfterARestartWaitsCountFromTheirBeginningAndAreNotObservedInPart(t *testing.T) {
	g, registry, updates := newUpdates(t)
	hourAgo := time.Now().Add(-time.Hour)
	waiting, running := updateNamed("waiting", autov1alpha1.UpdateTypeUp), updateNamed("running", autov1alpha1.UpdateTypeUp)
	running.Status.StartTime = &metav1.Time{Time: hourAgo}
	updates.Waiting(waiting, metrics.PhaseQueue, hourAgo)
	updates.Running(running)
	g.Expect(values(g, registry, oldest)).To(And(HaveKeyWithValue("queue", BeNumerically("~", 3600, 60)), HaveKeyWithValue("run", BeNumerically("~", 3600, 60))))
	updates.Started(waiting)
	g.Expect(values(g, registry, durations)).To(BeEmpty())

	again := updateNamed("running", autov1alpha1.UpdateTypeUp)
	again.UID = "another"
	updates.Waiting(again, metrics.PhaseFetch, time.Time{})
	g.Expect(nonZero(values(g, registry, inPhase))).To(Equal(map[string]float64{"fetch": 1, "run": 1}), "an Update that took the name of another one")
}

func TestDurationsThatAnAgentMakesUpAreBounded(t *testing.T) {
	g, registry, updates := newUpdates(t)
	update := ended(updateNamed("a", autov1alpha1.UpdateTypeUp), autov1alpha1.UpdateStateFailed)
	updates.Ended(update, metrics.Took{Total: time.Second, Run: time.Hour})
	updates.Ended(update, metrics.Took{Total: -time.Second, Run: time.Hour})
	updates.Ended(update, metrics.Took{Total: time.Second, Run: -time.Hour})
	g.Expect(values(g, registry, durations)).To(Equal(map[string]float64{"up/prepare": 2, "up/run": 1}))
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			g.Expect(metric.GetHistogram().GetSampleSum()).To(And(BeNumerically(">=", 0), BeNumerically("<=", 1)), family.GetName())
		}
	}
}

func TestWithoutMetricsNothingIsMeasured(*testing.T) {
	var updates *metrics.Updates
	update := updateNamed("a", autov1alpha1.UpdateTypeUp)
	updates.Waiting(update, metrics.PhaseQueue, time.Time{})
	updates.Started(update)
	updates.Running(update)
	updates.Ended(update, metrics.Took{})
	updates.Forget(types.NamespacedName{})
	var artifacts *metrics.Artifacts
	artifacts.Fetched(metrics.Downloaded, 1, nil)
	artifacts.Used(true)
}
