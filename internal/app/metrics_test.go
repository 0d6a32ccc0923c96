package app

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	gotkmetrics "github.com/fluxcd/pkg/runtime/metrics"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/events"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/spiffe"
)

const monitoringGuide = "../../docs/guides/monitoring.md"

// The table of metrics stands between these lines.
const (
	metricsBegin = "<!-- metrics: written by go test ./internal/app -run TestDocumentationListsEveryMetric -update-docs -->\n"
	metricsEnd   = "<!-- end of metrics -->\n"
)

// metricMeanings are what the documentation says about a metric in addition to its help text.
var metricMeanings = map[string]string{
	"stack_controller_notifications_total": "`sent`; `duplicate`: notification-controller has received the same event recently; `rejected`; " +
		"`expired`: it was unavailable for five minutes; `unknown`: its host does not exist in DNS; `overflow`: more than 8 MiB were queued; `abandoned`: the controller stopped first.",
	"stack_controller_updates_total":                 "kind: `preview`, `up`, `refresh`, `destroy`; result: `succeeded`, `failed`, `interrupted`, `cancelled`, `locked` by another process, `awaiting` resources that are not ready.",
	"stack_controller_update_phase_duration_seconds": "See [phases](#phases).",
	"stack_controller_updates_in_phase":              "See [phases](#phases).",
	"stack_controller_agents":                        "runtime: `pod` or `process`.",
	"stack_controller_artifact_fetches_total": "origin: `download` from a Flux source, or `make` of a git checkout or a Program; " +
		"result: `success` or `failure`.",
	"stack_controller_artifact_store_requests_total": "result: `hit` or `miss`.",
	"stack_controller_spiffe_identity": "state: `valid`; `expiring`: it should have been renewed; `expired`; and before the first: " +
		"`starting`, `refused`: none is registered, `unreachable`, `failing`. Only with [mutual TLS](mutual-tls.md).",
	"stack_controller_spiffe_identity_expiry_timestamp_seconds": "Only with [mutual TLS](mutual-tls.md).",
}

func TestDocumentationListsEveryMetric(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(monitoringGuide)
	g.Expect(err).NotTo(HaveOccurred())
	before, rest, found := strings.Cut(string(content), metricsBegin)
	g.Expect(found).To(BeTrue(), "no line %q", metricsBegin)
	table, after, found := strings.Cut(rest, metricsEnd)
	g.Expect(found).To(BeTrue(), "no line %q", metricsEnd)
	want := metricTable(g)
	if *updateDocs {
		table = want
		g.Expect(os.WriteFile(monitoringGuide, []byte(before+metricsBegin+table+metricsEnd+after), 0o644)).To(Succeed())
	}
	g.Expect(table).To(Equal(want), "run: go test ./internal/app -run TestDocumentationListsEveryMetric -update-docs")
}

// metricTable returns the table of all metrics except those of controller-runtime and Go.
func metricTable(g Gomega) string {
	families, err := ownMetrics(g).Gather()
	g.Expect(err).NotTo(HaveOccurred())
	known := map[string]bool{}
	table := "\n| Name | Type | Labels | Meaning |\n|------|------|--------|---------|\n"
	for _, family := range families {
		known[family.GetName()] = true
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		slices.Sort(labels)
		meaning := strings.TrimSpace(family.GetHelp() + " " + metricMeanings[family.GetName()])
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", family.GetName(), strings.ToLower(family.GetType().String()),
			strings.Join(labels, ", "), meaning)
	}
	for name := range metricMeanings {
		g.Expect(known).To(HaveKey(name), "a metric that does not exist is explained")
	}
	return table + "\n"
}

// ownMetrics returns a registry with all metrics that newSharedDependencies and addControllers register, and a sample of each.
func ownMetrics(g Gomega) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	stacks, err := metrics.NewStacks(registry)
	g.Expect(err).NotTo(HaveOccurred())
	stack := &pulumiv1.Stack{}
	conditions.MarkTrue(stack, pulumiv1.DriftedCondition, pulumiv1.DriftDetectedReason, "drifted")
	stacks.Observe(stack)
	_, err = metrics.NewPrograms(registry)
	g.Expect(err).NotTo(HaveOccurred())
	rollouts, err := metrics.NewRollouts(registry)
	g.Expect(err).NotTo(HaveOccurred())
	rollouts.Observe(&autov1alpha1.StackRollout{Status: autov1alpha1.StackRolloutStatus{Waves: []autov1alpha1.RolloutWaveStatus{{}}}}, false)
	updates, err := metrics.NewUpdates(registry)
	g.Expect(err).NotTo(HaveOccurred())
	updates.Started(&autov1alpha1.Update{UID: types.UID("a")})
	_, err = metrics.NewArtifacts(registry)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(metrics.RegisterStoreSize(registry, func() int64 { return 0 })).To(Succeed())
	g.Expect(metrics.RegisterAgents(registry, runtimePod, func() int { return 0 })).To(Succeed())
	_, err = spiffe.New(spiffe.Options{Address: "unix:///nowhere", Log: logr.Discard(), Registerer: registry})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = events.NewRecorder(events.Options{
		Scheme: k8sruntime.NewScheme(), Kubernetes: record.NewFakeRecorder(1), Controller: controllerName, Log: logr.Discard(), Registerer: registry,
	})
	g.Expect(err).NotTo(HaveOccurred())
	durations := gotkmetrics.NewRecorder()
	registry.MustRegister(durations.Collectors()...)
	durations.RecordDuration(corev1.ObjectReference{}, time.Now())
	return registry
}
