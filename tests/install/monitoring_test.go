package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// metricsService is the name that the Pulumi Kubernetes Operator gave the Service with its metrics.
const metricsService = "pulumi-kubernetes-operator-metrics"

func TestThePodMonitorSelectsThePodsOfTheController(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := kustomize(t, kustomization(t, `
resources: [repository/config/default]
components: [repository/config/monitoring/pod_monitor]
namespace: elsewhere
`))
	monitor := rendered.get(t, "PodMonitor", "stack-controller")
	g.Expect(monitor.GetNamespace()).To(Equal("elsewhere"))
	labels := at(t, rendered.get(t, "Deployment", "stack-controller"), "spec", "template", "metadata", "labels")
	for label, value := range at(t, monitor, "spec", "selector", "matchLabels").(map[string]any) {
		g.Expect(labels).To(HaveKeyWithValue(label, value))
	}
	ports := at(t, rendered.get(t, "Deployment", "stack-controller"), append(pod, "containers", 0, "ports")...)
	g.Expect(ports).To(ContainElement(HaveKeyWithValue("name", at(t, monitor, "spec", "podMetricsEndpoints", 0, "port"))))
}

func TestReleasesOfOtherNamesHaveMetricsServicesOfTheirOwn(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := template(t, "--set=fullnameOverride=stack-controller-shard1")
	service := rendered.get(t, "Service", "stack-controller-shard1-metrics")
	g.Expect(at(t, service, "spec", "selector")).To(Equal(map[string]any{"app": "stack-controller-shard1"}))
}

// expectMetrics asks the controller for its metrics with the commands of the guide.
func (c *realCluster) expectMetrics(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "monitoring.md")), "\n```sh\n")
	g.Expect(found).To(BeTrue())
	commands, _, _ := strings.Cut(section, "```\n")
	configure, ask, found := strings.Cut(commands, " &\n")
	g.Expect(found).To(BeTrue())
	g.Expect(configure).To(ContainSubstring("\nkubectl port-forward service/" + metricsService + " 8383:8383"))

	// The first command changes the file.
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(kubeconfig, []byte(read(t, c.KubeconfigPath)), 0o600)).To(Succeed())
	const wait = "trap 'kill $!' EXIT; for _ in $(seq 100); do curl -so /dev/null localhost:8383/metrics && break; sleep 0.1; done\n"
	output, err := c.shell(t, "export KUBECONFIG="+kubeconfig+"\n"+configure+" >/dev/null &\n"+wait+ask)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(And(
		ContainSubstring("# TYPE stacks_active gauge\nstacks_active 1\n"),
		ContainSubstring("\nstacks_failing{name=\"greeting\",namespace=\""),
	))
}
