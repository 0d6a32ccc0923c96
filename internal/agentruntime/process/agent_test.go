package process

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// realAgent returns options for the real agent and the real pulumi CLI.
func realAgent(t *testing.T, g *WithT) Options {
	t.Helper()
	agent := filepath.Join(filepath.Dir(stubPath), "agent")
	g.Expect(programs.Put(t.Context(), programs.Agent, agent)).To(Succeed())
	pulumi, err := tools.Path(t.Context(), "pulumi", func(line string) { t.Log(line) })
	g.Expect(err).NotTo(HaveOccurred())
	return Options{Dir: newDir(t), AgentPath: agent, PulumiPath: pulumi}
}

func TestRealAgentIsStartedFoundAgainRecoveredAndRemoved(t *testing.T) {
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
	g.Expect(second.Ensure(t.Context(), workspace, false)).To(beReady())
	g.Expect(recorded(g, second, workspace).Agent).To(Equal(agent))
	info := call(g, second, workspace)
	g.Expect(info.GetPulumiVersion()).To(HavePrefix("v3."))

	kill(g, agent)
	g.Eventually(second.Events(), patience).Should(Receive())
	g.Expect(makeReady(g, second, workspace)).NotTo(Equal(agent))

	deleteAll(g, second, workspace)
	g.Expect(os.ReadDir(options.Dir)).To(BeEmpty())
	g.Expect(agentsIn(options.Dir)).To(BeEmpty())
}

func TestRealAgentEndsWhenNobodyNeedsItAndStartsOnDemand(t *testing.T) {
	g := NewWithT(t)
	options := realAgent(t, g)
	options.IdleTimeout = 2 * time.Second // longer than it takes to call an agent that starts
	r := newRuntime(t, options)
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, r, workspace)

	eventuallyEnds(g, agent)

	g.Eventually(ensure(r, workspace), patience).Should(And(beReady(), HaveField("Resting", BeTrue())))
	g.Expect(r.Connect(t.Context(), workspace)).Error().To(MatchError(agentruntime.ErrResting))
	g.Expect(agentsIn(options.Dir)).To(BeEmpty(), "connecting starts nothing")
	call(g, r, workspace)
	g.Expect(recorded(g, r, workspace).Agent).NotTo(Equal(agent))
}

func TestAgentEndsSoonerWhenThereAreTooManyAndLaterWhenItsWorkspaceSaysSo(t *testing.T) {
	g := NewWithT(t)
	options := realAgent(t, g)
	options.IdleTimeout, options.MaxAgents = time.Hour, 2
	r := newRuntime(t, options)
	kept := makeReady(g, r, newWorkspace("kept", "1"))
	brief := newWorkspace("brief", "2")
	brief.Spec.IdleTimeout = &metav1.Duration{Duration: 200 * time.Millisecond}
	eventuallyEnds(g, makeReady(g, r, brief))
	g.Eventually(r.Agents, patience).Should(Equal(1), "the process may end before it is counted")
	other := makeReady(g, r, newWorkspace("other", "3"))

	eventuallyEnds(g, makeReady(g, r, newWorkspace("many", "4")))
	g.Expect(kept.Running()).To(BeTrue())
	g.Expect(other.Running()).To(BeTrue())
}
