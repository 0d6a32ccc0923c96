package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

// killedController starts a controller in another process, waits until the agent of the Workspace is ready, and kills the controller.
func killedController(g *WithT, dir string, workspace *autov1alpha1.Workspace, agentArgs ...string) {
	settings, err := json.Marshal(controllerSettings{
		Dir: dir, AgentPath: stubPath, AgentArgs: agentArgs, Workspace: keyFor(workspace), UID: workspace.UID,
	})
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), controllerVariable+"="+string(settings))
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	line, err := bufio.NewReader(output).ReadString('\n')
	g.Expect(cmd.Process.Kill()).To(Succeed())
	_ = cmd.Wait()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(line).To(Equal("ready\n"))
}

func TestNewControllerFindsTheAgentOfOneThatWasKilled(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	workspace := newWorkspace("app", "1")
	killedController(g, dir, workspace)
	r := newRuntime(t, Options{Dir: dir, RestartDelay: betweenAgents})
	start(t, r)
	agent := recorded(g, r, workspace).Agent

	status, err := r.Ensure(t.Context(), workspace, false)

	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status).To(beReady(), "what never stopped is not unready for a moment")
	call(g, r, workspace)
	g.Expect(recorded(g, r, workspace).Agent).To(Equal(agent))
	g.Expect(agentsIn(dir)).To(ConsistOf(agent.PID))

	kill(g, agent)
	g.Eventually(r.Events(), patience).Should(Receive())
	g.Expect(r.Ensure(t.Context(), workspace, false)).To(HaveField("Message", ContainSubstring("the agent ended unexpectedly")))
	g.Expect(makeReady(g, r, workspace)).NotTo(Equal(agent))
}

func TestAgentThatWasKilledWithItsControllerStartsOnDemand(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	workspace := newWorkspace("app", "1")
	killedController(g, dir, workspace, "--child")
	r := newRuntime(t, Options{Dir: dir})
	agent := recorded(g, r, workspace).Agent
	children := childrenOf(g, r, workspace, agent)
	g.Expect(children).To(HaveLen(1))
	kill(g, agent)
	eventuallyEnds(g, agent)

	g.Expect(r.Ensure(t.Context(), workspace, false)).To(beReady())
	g.Expect(agentsIn(dir)).To(BeEmpty())
	call(g, r, workspace)
	g.Expect(children[0].Running()).To(BeFalse(), "what a killed agent left is ended first")
}

func TestStopLeavesAnOperationAlone(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	options := Options{Dir: dir, AgentArgs: []string{"--operation"}}
	first := newRuntime(t, options)
	stop := start(t, first)
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, first, workspace)

	stop()

	g.Expect(agent.Running()).To(BeTrue())
	g.Expect(makeReady(g, newRuntime(t, options), workspace)).To(Equal(agent))
}

func TestStopLeavesAgentsToAnotherController(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	old, successor := newRuntime(t, Options{Dir: dir}), newRuntime(t, Options{Dir: dir})
	stop := start(t, old)
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, old, workspace)

	stop()

	g.Expect(makeReady(g, successor, workspace)).To(Equal(agent))
}

func TestDirectoriesOfWorkspacesThatAreGoneAreRemovedAtTheStart(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	first := newRuntime(t, Options{Dir: dir})
	kept, gone, replaced, doubtful := newWorkspace("kept", "1"), newWorkspace("gone", "1"), newWorkspace("replaced", "1"), newWorkspace("doubtful", "1")
	agents := map[string]procfs.Identity{}
	for _, workspace := range []*autov1alpha1.Workspace{kept, gone, replaced, doubtful} {
		agents[workspace.Name] = makeReady(g, first, workspace)
	}
	first.abandon()
	// A controller that is killed while it removes a directory leaves this.
	half := first.directory(keyFor(kept)).path + removedSuffix + "X"
	g.Expect(os.MkdirAll(half+"/state", 0o700)).To(Succeed())
	g.Expect(os.Chmod(half, 0o500)).To(Succeed())

	second := newRuntime(t, Options{Dir: dir, Exists: func(_ context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
		switch key.Name {
		case "doubtful":
			return false, errors.New("the API server does not answer")
		case "replaced":
			return uid == "2", nil
		}
		return key.Name == "kept", nil
	}})
	start(t, second)

	g.Eventually(func() ([]os.DirEntry, error) { return os.ReadDir(dir) }, patience).Should(HaveLen(2))
	g.Expect(second.directory(keyFor(kept)).path).To(BeADirectory())
	g.Expect(second.directory(keyFor(doubtful)).path).To(BeADirectory())
	for name, alive := range map[string]bool{"kept": true, "doubtful": true, "gone": false, "replaced": false} {
		agent := agents[name]
		g.Expect(agent.Running()).To(Equal(alive), name)
	}
}

func TestStopEndsAgentsWithoutOperationAndNoneIsNeededAfterARestart(t *testing.T) {
	g := NewWithT(t)
	options := realAgent(t, g)
	dir := options.Dir
	first := newRuntime(t, options)
	stop := start(t, first)
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, first, workspace)
	stop()
	g.Expect(agent.Running()).To(BeFalse())
	g.Expect(first.directory(keyFor(workspace)).state()).To(BeADirectory())

	second := newRuntime(t, options)
	g.Expect(second.Ensure(t.Context(), workspace, false)).To(beReady())
	g.Consistently(func() []int { return agentsIn(dir) }, 200*time.Millisecond).Should(BeEmpty())
}
