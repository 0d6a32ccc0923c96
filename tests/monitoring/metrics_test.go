package monitoring_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// The table in the guide is written from the code; this is what the code has that runs.
func TestGuideListsEveryMetricThatTheControllerHas(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	guide, err := os.ReadFile(inRepository("docs", "guides", "monitoring.md"))
	g.Expect(err).NotTo(HaveOccurred())
	samples, err := observed.query(t.Context(), `{__name__=~"(stacks|stack|programs|resource|gotk|pulumi)_.+", job="flux-system/stack-controller"}`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(samples).NotTo(BeEmpty())
	for _, one := range samples {
		name := one.Labels["__name__"]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		g.Expect(string(guide)).To(ContainSubstring("\n| `" + name + "` | "))
	}
}

func TestMetricsTellWhatHappened(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	awaitFailure(t)
	const phases = "stack_controller_update_phase_duration_seconds"
	for query, want := range map[string]any{
		`sum(stacks_active)`:  BeNumerically("==", 2),
		`sum(stacks_failing)`: BeNumerically("==", 1),
		`stack_controller_updates_total{kind="up",result="succeeded"}`:   BeNumerically(">=", 1+commits),
		`stack_controller_updates_total{kind="up",result="failed"}`:      BeNumerically(">=", 1),
		`stack_controller_updates_total{kind="destroy",result="failed"}`: BeZero(),
		// Pulumi takes most of the time, and what was asked for while another operation ran had to wait.
		`sum(` + phases + `_sum{phase="run"}) > sum(` + phases + `_sum{phase="prepare"})`:                                 BeNumerically(">", 0.1),
		`sum(` + phases + `_count{phase="run"}) >= ` + `sum(stack_controller_updates_total{result="succeeded"})`:          BeNumerically(">", commits),
		`min(` + phases + `_count{phase=~"workspace|queue|fetch|delivery|other"}) >= sum(stack_controller_updates_total)`: BeNumerically(">", commits),
		`sum(stack_controller_artifact_fetches_total{origin="download",result="success"})`:                                BeNumerically(">=", 2+commits),
		`stack_controller_artifact_fetched_bytes_total{origin="download"}`:                                                BeNumerically(">", 100),
		`stack_controller_artifact_store_bytes`:                                                                           BeNumerically(">", 100),
		`stack_controller_artifact_store_requests_total{result="miss"}`:                                                   BeNumerically(">=", 1+commits),
		`stack_controller_agents{runtime="process"}`:                                                                      BeNumerically(">=", 1),
	} {
		t.Run(query, func(t *testing.T) {
			g := NewWithT(t)
			eventually(g, func() ([]sample, error) { return observed.query(t.Context(), query) }).Should(ConsistOf(HaveField("Value", want)))
		})
	}
}
