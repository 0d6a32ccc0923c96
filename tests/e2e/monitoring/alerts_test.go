package monitoring_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	g := NewWithT(t)
	path, err := tools.Path(t.Context(), "promtool", func(line string) { t.Log(line) })
	g.Expect(err).NotTo(HaveOccurred())
	output, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))
}

func TestAlertsFireWhenTheyShouldAndOnlyThen(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	dir := t.TempDir()
	names := map[string]bool{}
	rules, err := ruleGroups(func(rule map[string]any) {
		names[fmt.Sprint(rule["alert"])] = false
		annotations, isObject := rule["annotations"].(map[string]any)
		g.Expect(isObject).To(BeTrue())
		g.Expect(annotations).To(And(HaveLen(2), HaveKey("summary"), HaveKey("description")), "%s", rule["alert"])
		delete(annotations, "description")
	})
	g.Expect(err).NotTo(HaveOccurred())
	tests, err := os.ReadFile(filepath.Join("testdata", "alerts.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	for name, content := range map[string][]byte{"rules.yaml": rules, "alerts.yaml": tests} {
		g.Expect(os.WriteFile(filepath.Join(dir, name), content, 0o600)).To(Succeed())
	}
	promtool(t, "check", "rules", "--lint-fatal", filepath.Join(dir, "rules.yaml"))
	promtool(t, "test", "rules", filepath.Join(dir, "alerts.yaml"))

	var played struct {
		Tests []struct {
			AlertRuleTest []struct {
				AlertName string `json:"alertname"`
				ExpAlerts []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	g.Expect(yaml.Unmarshal(tests, &played)).To(Succeed())
	for _, test := range played.Tests {
		for _, one := range test.AlertRuleTest {
			g.Expect(names).To(HaveKey(one.AlertName))
			names[one.AlertName] = names[one.AlertName] || len(one.ExpAlerts) > 0
		}
	}
	g.Expect(names).To(HaveEach(true), "each alert fires in one of the tests")
}

func TestGuideListsEveryAlert(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(inRepository("docs", "guides", "monitoring.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "\n## Alerts\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	alerts := 0
	_, err = ruleGroups(func(rule map[string]any) {
		alerts++
		labels, _ := rule["labels"].(map[string]any)
		g.Expect(section).To(ContainSubstring(fmt.Sprintf("\n| `%s` | %s | ", rule["alert"], labels["severity"])))
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Count(section, "\n| `")).To(Equal(alerts), "an alert that does not exist is documented")
}

func TestAlertFiresForAStackThatFails(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	awaitFailure(t)
	eventually(g, func() ([]alert, error) { return observed.firing(t.Context(), "StackFailing") }).Should(ConsistOf(And(
		HaveField("Labels", And(HaveKeyWithValue("namespace", broken), HaveKeyWithValue("name", broken), HaveKeyWithValue("severity", "warning"))),
		HaveField("Annotations", HaveKeyWithValue("summary", "The last update of Stack "+broken+"/"+broken+" failed.")),
	)))
	down, err := observed.firing(t.Context(), "StackControllerDown")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(down).To(BeEmpty())
}
