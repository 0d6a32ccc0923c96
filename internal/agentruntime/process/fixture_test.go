package process

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

// patience is how long tests wait for something that takes milliseconds on a quiet machine.
const patience = 20 * time.Second

// newDir returns a directory for a Runtime; the path of t.TempDir would be too long for a socket. At the end of the test, it kills all
// processes of the directory.
func newDir(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "process-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		entries, err := os.ReadDir(dir)
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, entry := range entries {
			g.Expect(directory{path: dir + "/" + entry.Name()}.clear(ctx, time.Millisecond, "")).To(Succeed())
		}
		unknown := agentsIn(dir)
		for _, pid := range unknown {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		g.Expect(os.RemoveAll(dir)).To(Succeed())
		g.Expect(unknown).To(BeEmpty(), "an agent without a record")
	})
	return dir
}

// newBench returns a Runtime in a directory of its own, and a Workspace for it.
func newBench(t *testing.T, options Options) (*WithT, *Runtime, *autov1alpha1.Workspace) {
	t.Helper()
	options.Dir = newDir(t)
	return NewWithT(t), newRuntime(t, options), newWorkspace("app", "1")
}

// newRuntime returns a Runtime that runs tests/framework/stubagent as its agents, unless the options name another program. Start is not called.
func newRuntime(t *testing.T, options Options) *Runtime {
	t.Helper()
	if options.AgentPath == "" {
		options.AgentPath = stubPath
	}
	if options.PulumiPath == "" {
		options.PulumiPath = "true"
	}
	r, err := New(options)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(r.abandon)
	return r
}

// start runs the Runtime until the returned function is called, or the test ends.
func start(t *testing.T, r *Runtime) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		NewWithT(t).Eventually(done, patience).Should(Receive(BeNil()))
	}
	t.Cleanup(stop)
	return stop
}

// ensure returns a function that calls Ensure, for Eventually.
func ensure(r *Runtime, workspace *autov1alpha1.Workspace) func() (agentruntime.Status, error) {
	return func() (agentruntime.Status, error) { return r.Ensure(context.Background(), workspace, false) }
}

// beReady matches a Status that is Ready.
func beReady() types.GomegaMatcher {
	return HaveField("Ready", BeTrue())
}

// recorded returns the record of the Workspace's directory.
func recorded(g *WithT, r *Runtime, workspace *autov1alpha1.Workspace) record {
	found, err := r.directory(keyFor(workspace)).readRecord()
	g.Expect(err).NotTo(HaveOccurred())
	return found
}

// makeReady waits until the agent of the Workspace is ready and returns its process.
func makeReady(g *WithT, r *Runtime, workspace *autov1alpha1.Workspace) procfs.Identity {
	var agent procfs.Identity
	g.Eventually(func(g Gomega) {
		g.Expect(r.Ensure(context.Background(), workspace, false)).To(beReady())
		found, err := r.directory(keyFor(workspace)).readRecord()
		g.Expect(err).NotTo(HaveOccurred())
		agent = found.Agent
		g.Expect(agent.Running()).To(BeTrue())
	}, patience).Should(Succeed())
	return agent
}

// call calls the agent of the Workspace.
func call(g *WithT, r *Runtime, workspace *autov1alpha1.Workspace) *agentpb.Info {
	agent, err := r.Wake(context.Background(), workspace)
	g.Expect(err).NotTo(HaveOccurred())
	info, err := agent.GetInfo(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	return info
}

// deleteAll calls Delete until nothing is left of the Workspace.
func deleteAll(g *WithT, r *Runtime, workspace *autov1alpha1.Workspace) {
	g.Eventually(func() error { return r.Delete(context.Background(), keyFor(workspace)) }, patience).Should(Succeed())
}

// kill ends the process at once.
func kill(g *WithT, process procfs.Identity) {
	g.Expect(process.Running()).To(BeTrue())
	g.Expect(syscall.Kill(process.PID, syscall.SIGKILL)).To(Succeed())
}

// eventuallyEnds waits for the end of the process.
func eventuallyEnds(g *WithT, process procfs.Identity) {
	g.Eventually(process.Running, patience).Should(BeFalse())
}
