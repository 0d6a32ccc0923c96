package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// buildAgent builds the real agent, once.
var buildAgent = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(stubPath), "agent")
	output, err := exec.Command("go", "build", "-o", path, "../../../cmd/agent").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, output)
	}
	return path, nil
})

// realAgent returns options for the real agent and the real pulumi CLI.
func realAgent(t *testing.T, g *WithT) Options {
	t.Helper()
	agent, err := buildAgent()
	g.Expect(err).NotTo(HaveOccurred())
	pulumi, err := tools.Path(t.Context(), "pulumi", func(line string) { t.Log(line) })
	g.Expect(err).NotTo(HaveOccurred())
	return Options{Dir: newDir(t), AgentPath: agent, PulumiPath: pulumi}
}

func TestRealAgentIsStartedFoundAgainHealedAndRemoved(t *testing.T) {
	g := NewWithT(t)
	options := realAgent(t, g)
	first := newRuntime(t, options)
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, first, workspace)
	socket, err := os.Stat(first.directory(keyFor(workspace)).socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(socket.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	first.abandon()

	second := newRuntime(t, options)
	start(t, second)
	g.Expect(second.Ensure(t.Context(), workspace)).To(beReady())
	g.Expect(recorded(g, second, workspace).Agent).To(Equal(agent))
	client, err := second.Connect(t.Context(), workspace)
	g.Expect(err).NotTo(HaveOccurred())
	info, err := client.GetInfo(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.GetPulumiVersion()).To(HavePrefix("v3."))

	kill(g, agent)
	g.Eventually(second.Events(), notice).Should(Receive())
	g.Expect(makeReady(g, second, workspace)).NotTo(Equal(agent))

	g.Eventually(func() error { return second.Delete(t.Context(), keyFor(workspace)) }, patience).Should(Succeed())
	g.Expect(os.ReadDir(options.Dir)).To(BeEmpty())
	g.Expect(agentsIn(options.Dir)).To(BeEmpty())
}

func TestRealAgentEndsWhenNobodyNeedsItAndStartsOnDemand(t *testing.T) {
	g := NewWithT(t)
	options := realAgent(t, g)
	options.IdleTimeout = 300 * time.Millisecond
	r := newRuntime(t, options)
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, r, workspace)

	eventuallyEnds(g, agent)

	g.Eventually(ensure(r, workspace), patience).Should(And(beReady(), HaveField("Resting", BeTrue())))
	client, err := r.Connect(t.Context(), workspace)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = client.GetInfo(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(recorded(g, r, workspace).Agent).NotTo(Equal(agent))
}

func TestRealAgentWithoutWorkEndsWithItsController(t *testing.T) {
	g := NewWithT(t)
	r := newRuntime(t, realAgent(t, g))
	stop := start(t, r)
	agent := makeReady(g, r, newWorkspace("app", "1"))
	stop()
	g.Expect(agent.running()).To(BeFalse())
}
