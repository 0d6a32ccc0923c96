package artifact_test

import (
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

const (
	fetches = `# HELP stack_controller_artifact_fetches_total Artifacts that were downloaded or made, by origin and result.
# TYPE stack_controller_artifact_fetches_total counter
stack_controller_artifact_fetches_total{origin="download",result="failure"} 1
stack_controller_artifact_fetches_total{origin="download",result="success"} 1
stack_controller_artifact_fetches_total{origin="make",result="failure"} 0
stack_controller_artifact_fetches_total{origin="make",result="success"} 0
`
	requests = `# HELP stack_controller_artifact_store_requests_total Deliveries to agents out of the store: a miss had the artifact fetched, a hit shares what was fetched earlier.
# TYPE stack_controller_artifact_store_requests_total counter
stack_controller_artifact_store_requests_total{result="hit"} 2
stack_controller_artifact_store_requests_total{result="miss"} 1
`
)

func TestMetricsShowWhatWasFetchedAndWhatTheStoreSaved(t *testing.T) {
	g := NewWithT(t)
	registry := prometheus.NewRegistry()
	measured, err := metrics.NewArtifacts(registry)
	g.Expect(err).NotTo(HaveOccurred())
	server, dir := newServer(t), t.TempDir()
	ref := server.publish("name: demo")
	store := newStore(t, artifact.Options{Dir: dir, Metrics: measured})
	g.Expect(metrics.RegisterStoreSize(registry, store.Size)).To(Succeed())
	for range 2 {
		g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	}
	for range 3 {
		g.Expect(read(store, ref)).NotTo(BeEmpty())
	}
	missing := server.publish("name: missing")
	server.answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	g.Expect(store.Fetch(t.Context(), missing)).NotTo(Succeed())

	size := int64(len(server.content(ref)))
	g.Expect(store.Size()).To(Equal(size))
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(fetches), "stack_controller_artifact_fetches_total")).To(Succeed())
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(requests), "stack_controller_artifact_store_requests_total")).To(Succeed())

	restarted := newStore(t, artifact.Options{Dir: dir, Metrics: measured})
	g.Expect(read(restarted, ref)).NotTo(BeEmpty())
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(strings.Replace(requests, `"hit"} 2`, `"hit"} 3`, 1)),
		"stack_controller_artifact_store_requests_total")).To(Succeed(), "an earlier process fetched it")
}
