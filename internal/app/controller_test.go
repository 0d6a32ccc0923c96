package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
)

const (
	timeout      = 30 * time.Second
	pollInterval = 100 * time.Millisecond
)

// controllerProcess is a controller that runs in its own process, with the rights that the manifests grant.
type controllerProcess struct {
	*supervise.Process
	metrics, health string // host:port
	log             string // path
}

// started counts the controllers that were started.
var started atomic.Int64

// startController starts a controller and returns when the controller is ready. The controller is killed at the end of the test at the
// latest.
func startController(t *testing.T, cp *controlplane.ControlPlane, args ...string) *controllerProcess {
	t.Helper()
	return startControllerIn(t, cp, nil, args...)
}

// startControllerIn is startController with additional environment variables.
func startControllerIn(t *testing.T, cp *controlplane.ControlPlane, environment []string, args ...string) *controllerProcess {
	t.Helper()
	g := NewWithT(t)
	config, err := cp.ServiceAccountConfig(t.Context(), "flux-system", controllerName)
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := cp.WriteKubeconfig(controllerName, config)
	g.Expect(err).NotTo(HaveOccurred())
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())

	c := &controllerProcess{}
	name := fmt.Sprintf("controller-%d", started.Add(1))
	c.log = cp.LogPath(name)
	c.Process, err = cp.StartProgram(t.Context(), controlplane.Program{
		Name: name,
		Path: self,
		Args: func(metrics, health string) []string {
			c.metrics, c.health = metrics, health
			return append([]string{
				"--metrics-addr=" + metrics,
				"--health-addr=" + health,
				"--storage-path=" + filepath.Join(cp.Dir, name),
				// Neither program runs: these tests have no Stacks that could be updated.
				"--agent-path=" + self,
				"--pulumi=" + self,
				"--workspace-runtime=process",
			}, args...)
		},
		Env: append([]string{actAsController + "=1", "KUBECONFIG=" + kubeconfig, "RUNTIME_NAMESPACE=flux-system"}, environment...),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := c.Stop(0); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(controlplane.Tail(c.log, 50))
		}
	})
	// The metrics endpoint starts a moment after the probes.
	g.Eventually(func(g Gomega) { get(g, "http://"+c.metrics+"/metrics") }, timeout, pollInterval).Should(Succeed())
	return c
}

func get(g Gomega, url string) string {
	client := &http.Client{Timeout: timeout}
	response, err := client.Get(url)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.StatusCode).To(Equal(http.StatusOK), string(body))
	return string(body)
}

func (c *controllerProcess) leads(g Gomega) bool {
	text := get(g, "http://"+c.metrics+"/metrics")
	g.Expect(text).To(ContainSubstring("leader_election_master_status{"))
	return strings.Contains(text, `leader_election_master_status{name="stack-controller-leader-election"} 1`)
}

func (c *controllerProcess) logged(g Gomega) string {
	content, err := os.ReadFile(c.log)
	g.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// errorLines returns the lines that the controller logged as errors.
func (c *controllerProcess) errorLines(g Gomega) (lines []string) {
	for line := range strings.Lines(c.logged(g)) {
		if strings.Contains(line, `"level":"error"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// controllerNames are the names of all controllers in logs and metrics.
var controllerNames = []string{"approval", "program", "stack", "stackrollout", "update", "workspace"}

// TestAlertsAndDashboardsAreAboutAllControllers looks at the alternatives in which their queries list controllers.
func TestAlertsAndDashboardsAreAboutAllControllers(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("../../config/monitoring/dashboards/*.json")
	g.Expect(err).NotTo(HaveOccurred())
	found := 0
	for _, file := range append(files, "../../config/monitoring/prometheus_rule.yaml") {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		for _, match := range regexp.MustCompile(`(?:controller|name)=~\\?"([a-z|]*\bstack\b[a-z|]*)\\?"`).FindAllStringSubmatch(string(content), -1) {
			found++
			g.Expect(strings.Split(match[1], "|")).To(ConsistOf(controllerNames), file)
		}
	}
	g.Expect(found).To(BeNumerically(">=", 12))
}

func TestControllerServesProbesMetricsAndProfilesAndStopsWhenAsked(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	profiles := listener.Addr().String()
	g.Expect(listener.Close()).To(Succeed())
	c := startController(t, installed(t), "--pprof-addr="+profiles)
	get(g, "http://"+c.health+"/healthz")
	get(g, "http://"+c.health+"/readyz")
	const path = "/debug/pprof/goroutine?debug=1"
	g.Eventually(func(g Gomega) { get(g, "http://"+profiles+path) }, timeout, pollInterval).Should(Succeed())
	response, err := http.Get("http://" + c.metrics + path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())
	g.Expect(response.StatusCode).To(Equal(http.StatusNotFound), "profiles are served on their loopback address only")
	g.Eventually(func(g Gomega) string { return get(g, "http://"+c.metrics+"/metrics") }, timeout, pollInterval).Should(And(
		ContainSubstring(`controller_runtime_max_concurrent_reconciles{controller="stack"} 8`),
		ContainSubstring("\nstacks_active 0\n"),
		ContainSubstring(`stack_controller_notifications_total{outcome="sent"} 0`),
	))
	var registered []string
	for _, match := range regexp.MustCompile(`controller_runtime_max_concurrent_reconciles\{controller="(\w+)"\}`).FindAllStringSubmatch(get(g, "http://"+c.metrics+"/metrics"), -1) {
		registered = append(registered, match[1])
	}
	g.Expect(registered).To(ConsistOf(controllerNames))
	g.Eventually(c.logged, timeout, pollInterval).Should(ContainSubstring("child processes of the controller"))
	// A controller that is stopped while it starts logs that as an error.
	for _, name := range controllerNames {
		g.Eventually(c.logged, timeout, pollInterval).Should(ContainSubstring(`"msg":"Starting workers","controller":"` + name + `"`))
	}

	begin := time.Now()
	g.Expect(c.Signal(syscall.SIGTERM)).To(Succeed())
	g.Eventually(c.Done(), timeout).Should(BeClosed())
	g.Expect(time.Since(begin)).To(BeNumerically("<", 10*time.Second))
	g.Expect(c.Status()).To(Equal("exit status 0"))
	// The rights of the role were enough for all watches.
	g.Expect(c.logged(g)).NotTo(ContainSubstring("forbidden"))
	g.Expect(c.errorLines(g)).To(BeEmpty())
}

func TestPodRuntimeNeedsNoMoreThanTheManifestsGiveAndNoProgramOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	cp := installed(t)
	c := startController(t, cp, "--workspace-runtime=pod", "--agent-image=example.com/agent", "--agent-path=/none", "--pulumi=/none")
	namespace := fmt.Sprintf("pod-runtime-%d", time.Now().UnixNano())
	workspace := fmt.Sprintf(podWorkspace, namespace)
	_, err := cp.KubectlInput(t.Context(), workspace, "create", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := cp.KubectlInput(context.Background(), workspace, "delete", "--wait=false", "--filename=-")
		g.Expect(err).NotTo(HaveOccurred())
	})
	g.Eventually(func() (string, error) {
		return cp.Kubectl(t.Context(), "--namespace="+namespace, "get", "statefulsets,services,secrets", "--output=name")
	}, timeout, pollInterval).Should(And(
		ContainSubstring("statefulset.apps/app-workspace\n"), ContainSubstring("service/app-workspace\n"), ContainSubstring("secret/app-workspace-rpc\n")))
	g.Eventually(func() (string, error) {
		return cp.Kubectl(t.Context(), "--namespace="+namespace, "get", "workspace", "app", "--output=jsonpath={.status.conditions[?(@.type=='Ready')].reason}")
	}, timeout, pollInterval).Should(Equal("WaitingForReplicas"))
	g.Expect(c.logged(g)).NotTo(ContainSubstring("child processes of the controller"))
	g.Expect(c.logged(g)).NotTo(ContainSubstring("forbidden"))
	g.Expect(c.errorLines(g)).To(BeEmpty())
}

// podWorkspace is a format for a Workspace in its own namespace; the argument is the name of the namespace.
const podWorkspace = `
apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
---
apiVersion: auto.pulumi.com/v1alpha1
kind: Workspace
metadata:
  namespace: %[1]s
  name: app
`

func TestStandbyTakesOverAtOnceWhenTheLeaderStops(t *testing.T) {
	g := NewWithT(t)
	cp := installed(t)
	election := []string{"--enable-leader-election", "--leader-election-retry-period=500ms",
		"--leader-election-renew-deadline=20s", "--leader-election-lease-duration=25s"}
	first := startController(t, cp, election...)
	g.Eventually(first.leads, timeout, pollInterval).Should(BeTrue())
	second := startController(t, cp, election...)
	g.Eventually(second.logged, timeout, pollInterval).Should(ContainSubstring("Attempting to acquire leader lease"))
	g.Expect(second.leads(g)).To(BeFalse())
	g.Expect(second.logged(g)).NotTo(ContainSubstring("Starting workers"))

	begin := time.Now()
	g.Expect(first.Stop(timeout)).To(Succeed())
	g.Eventually(second.leads, timeout, pollInterval).Should(BeTrue())
	g.Expect(time.Since(begin)).To(BeNumerically("<", 15*time.Second), "the lease was not released but ran out")
	g.Eventually(second.logged, timeout, pollInterval).Should(ContainSubstring("Starting workers"))
}

func TestWithoutAClusterTheControllerSaysSo(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	err := run(t.Context(), "dev", []string{"--workspace-runtime=process"}, io.Discard)
	g.Expect(err).To(MatchError(HavePrefix("find the Kubernetes API server: ")))
	g.Expect(exitCode(err, io.Discard)).To(Equal(1))
}
