package process

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

// betweenAgents is a restart delay for tests that check the time between two agents.
const betweenAgents = 3 * time.Second

func TestKilledAgentIsNoticedAtOnceAndStartedAgain(t *testing.T) {
	g, r, workspace := newBench(t, Options{RestartDelay: betweenAgents})
	start(t, r)
	first := makeReady(g, r, workspace)
	g.Eventually(r.Events(), patience).Should(Receive())
	before, err := r.Connect(t.Context(), workspace)
	g.Expect(err).NotTo(HaveOccurred())

	kill(g, first)

	g.Eventually(r.Events(), patience).Should(Receive())
	status, err := r.Ensure(t.Context(), workspace, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status).To(And(
		HaveField("Ready", BeFalse()),
		HaveField("Reason", autov1alpha1.InitializationFailedReason),
		HaveField("Message", ContainSubstring("was ended by a signal (killed) (failure 1 in a row), it is started again at ")),
		HaveField("Address", BeEmpty()),
	))
	g.Expect(r.Connect(t.Context(), workspace)).Error().To(MatchError(agentruntime.ErrNoAgent))

	second := makeReady(g, r, workspace)
	g.Expect(second).NotTo(Equal(first))
	g.Eventually(r.Events(), patience).Should(Receive())
	after, err := r.Connect(t.Context(), workspace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after).NotTo(BeIdenticalTo(before))
	g.Expect(after.GetInfo(t.Context())).Error().NotTo(HaveOccurred())
}

func TestProcessesThatOutliveAKilledAgentAreEndedBeforeTheNextOne(t *testing.T) {
	g, r, workspace := newBench(t, Options{AgentArgs: []string{"--child"}})
	first := makeReady(g, r, workspace)
	children := childrenOf(g, r, workspace, first)
	g.Expect(children).To(HaveLen(1))

	kill(g, first)
	eventuallyEnds(g, first)
	g.Expect(children[0].Running()).To(BeTrue(), "nobody but the runtime ends it")

	makeReady(g, r, workspace)
	g.Expect(children[0].Running()).To(BeFalse())
}

func TestAgentThatCrashesIsStartedAgainWithAGrowingDelay(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("PROXY_PASSWORD", "hunter2")
	r := newRuntime(t, Options{Dir: newDir(t), AgentArgs: []string{"--fail=cannot use hunter2 here"}, Environ: []string{"PROXY_PASSWORD"}})
	workspace := newWorkspace("app", "1")
	failure := func(text string) types.GomegaMatcher {
		return And(
			HaveField("Ready", BeFalse()),
			HaveField("Reason", autov1alpha1.InitializationFailedReason),
			HaveField("Message", And(
				ContainSubstring("the agent ended with exit status 3 before it listened ("+text),
				HaveSuffix("end of its log:\ncannot use [secret] here"),
			)),
		)
	}
	started := time.Now()
	g.Eventually(ensure(r, workspace), patience, "10ms").Should(failure("failure 1 in a row"))
	g.Eventually(ensure(r, workspace), patience, "10ms").Should(failure("failure 2 in a row"))
	g.Eventually(ensure(r, workspace), patience, "10ms").Should(failure("failure 3 in a row"))
	g.Expect(time.Since(started)).To(BeNumerically(">=", restartDelay(defaultRestartDelay, 1)+restartDelay(defaultRestartDelay, 2)))
	g.Expect(r.Ensure(t.Context(), workspace, false)).To(HaveField("Stalled", BeFalse()))
}

func TestRestartDelayDoublesUpToItsLimit(t *testing.T) {
	g := NewWithT(t)
	var delays []time.Duration
	for failures := 1; failures <= 8; failures++ {
		delays = append(delays, restartDelay(time.Second, failures))
	}
	const s = time.Second
	g.Expect(delays).To(Equal([]time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s}))
	g.Expect(restartDelay(time.Second, 1_000_000)).To(Equal(maxRestartDelay))
}

func TestAgentThatCrashedOftenIsStalledUntilItListens(t *testing.T) {
	g := NewWithT(t)
	r := newRuntime(t, Options{Dir: newDir(t)})
	s := r.supervisor(keyFor(newWorkspace("app", "1")))
	defer s.mu.Unlock()
	for s.failures = range stalledFailures + 2 {
		for phase, stalled := range map[phase]bool{
			phaseFailed:   s.failures >= stalledFailures,
			phaseStarting: s.failures >= stalledFailures,
			phaseRunning:  false,
		} {
			s.phase = phase
			g.Expect(s.status().Stalled).To(Equal(stalled), "%d failures, phase %d", s.failures, phase)
		}
	}
}

func TestAgentThatNeverListensIsKilled(t *testing.T) {
	g, r, workspace := newBench(t, Options{AgentArgs: []string{"--mute"}, startTimeout: 100 * time.Millisecond})
	g.Eventually(ensure(r, workspace), patience).Should(HaveField("Message", ContainSubstring("did not listen within 100ms")))
	g.Expect(recorded(g, r, workspace).Agent.Running()).To(BeFalse())
}

func TestAgentProgramThatIsGoneIsReported(t *testing.T) {
	g := NewWithT(t)
	r := newRuntime(t, Options{Dir: newDir(t)})
	r.options.AgentPath = "/none/agent"
	g.Eventually(ensure(r, newWorkspace("app", "1")), patience).Should(HaveField("Message", HavePrefix("the agent could not be started: start the process: fork/exec /none/agent: no such file or directory (failure 1 in a row)")))
}

func TestDeleteEndsACrashLoop(t *testing.T) {
	g, r, workspace := newBench(t, Options{AgentArgs: []string{"--fail=no"}})
	g.Eventually(ensure(r, workspace), patience).Should(HaveField("Reason", autov1alpha1.InitializationFailedReason))
	deleteAll(g, r, workspace)
	g.Expect(os.ReadDir(r.options.Dir)).To(BeEmpty())
}

// recordAgent writes a record as if an earlier controller had started this agent for the Workspace "app".
func recordAgent(g *WithT, r *Runtime, agent procfs.Identity) {
	dir := r.directory(keyFor(newWorkspace("app", "1")))
	unlock, err := dir.lock(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	defer unlock()
	g.Expect(dir.writeRecord(record{Namespace: "team", Name: "app", UID: "1", Agent: agent})).To(Succeed())
}

func TestProcessIDThatWasGivenToAnotherProcessIsNotTheAgent(t *testing.T) {
	g, r, workspace := newBench(t, Options{})
	stranger := sleep(g, t)
	// The agent of an earlier controller had the same id, but started at another time.
	agent := stranger
	agent.StartTime--
	recordAgent(g, r, agent)

	g.Expect(makeReady(g, r, workspace).PID).NotTo(Equal(stranger.PID))
	deleteAll(g, r, workspace)
	g.Expect(stranger.Running()).To(BeTrue())
}

func TestProcessIDThatBelongsToAThreadIsNotTheAgent(t *testing.T) {
	g, r, workspace := newBench(t, Options{})
	self, err := procfs.Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	agent := self
	agent.PID = thread(t)
	recordAgent(g, r, agent)

	g.Expect(makeReady(g, r, workspace).PID).NotTo(Equal(agent.PID))
	deleteAll(g, r, workspace)
}

// thread returns the id of a thread of this process that is not its first one. The runtime of Go has some that never end.
func thread(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, task := range tasks {
		if id, err := strconv.Atoi(task.Name()); err == nil && id != os.Getpid() {
			return id
		}
	}
	t.Fatal("this process has no other thread")
	return 0
}

func TestSessionOfAStrangerIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	dir := directory{path: newDir(t) + "/0123456789ab"}
	g.Expect(os.Mkdir(dir.path, 0o700)).To(Succeed())
	stranger := sleep(g, t)
	// The agent's session had this id before. The session that has it now has nothing to do with the directory.
	agent := stranger
	agent.StartTime--
	g.Expect(dir.leftovers(agent)).To(BeEmpty())
	g.Expect(dir.leftovers(stranger)).To(BeEmpty(), "the leader itself is not left over")
}

// sleep starts a process that leads a session and has nothing to do with agents.
func sleep(g *WithT, t *testing.T) procfs.Identity {
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	id, err := procfs.Identify(cmd.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	return id
}

func TestAgentOfAControllerThatEndedBeforeItRecordedItIsFound(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	workspace := newWorkspace("app", "1")
	first := newRuntime(t, Options{Dir: dir})
	agent := makeReady(g, first, workspace)
	first.abandon()
	found := recorded(g, first, workspace)
	found.Agent, found.Starting = procfs.Identity{}, true
	g.Expect(first.directory(keyFor(workspace)).writeRecord(found)).To(Succeed())

	second := newRuntime(t, Options{Dir: dir})
	g.Expect(makeReady(g, second, workspace)).To(Equal(agent))
	g.Expect(agentsIn(dir)).To(HaveLen(1))
}

func TestDirectoryWithADamagedRecordIsReplaced(t *testing.T) {
	g := NewWithT(t)
	dir := newDir(t)
	workspace := newWorkspace("app", "1")
	first := newRuntime(t, Options{Dir: dir})
	agent := makeReady(g, first, workspace)
	first.abandon()
	g.Expect(os.WriteFile(first.directory(keyFor(workspace)).recordFile(), []byte("{"), 0o600)).To(Succeed())

	second := newRuntime(t, Options{Dir: dir})
	g.Expect(makeReady(g, second, workspace)).NotTo(Equal(agent))
	g.Expect(agent.Running()).To(BeFalse())
	g.Expect(agentsIn(dir)).To(HaveLen(1))
}

func TestAgentThatEndedInOrderRestsAndStartsOnDemand(t *testing.T) {
	for _, tt := range []struct {
		name    string
		adopted bool
	}{
		{name: "started by this controller"},
		{name: "started by an earlier controller", adopted: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			dir := newDir(t)
			workspace := newWorkspace("app", "1")
			if tt.adopted {
				killedController(g, dir, workspace)
			}
			r := newRuntime(t, Options{Dir: dir})
			first := makeReady(g, r, workspace)
			state := r.directory(keyFor(workspace)).state() + "/result"
			g.Expect(os.WriteFile(state, nil, 0o600)).To(Succeed())

			g.Expect(syscall.Kill(first.PID, syscall.SIGTERM)).To(Succeed())
			eventuallyEnds(g, first)
			resting := r.supervisor(keyFor(workspace))
			resting.mu.Unlock()
			g.Eventually(resting.workers, patience).Should(BeZero(), "a workspace that rests costs nothing")

			g.Expect(r.Ensure(t.Context(), workspace, false)).To(And(beReady(), HaveField("Resting", BeTrue())))
			g.Expect(agentsIn(dir)).To(BeEmpty())
			call(g, r, workspace)
			g.Expect(recorded(g, r, workspace).Agent).NotTo(Equal(first))
			g.Expect(state).To(BeAnExistingFile())
		})
	}
}

// workers returns the number of goroutines that act for the workspace.
func (s *supervisor) workers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.interrupt == nil {
		return 0
	}
	return 1
}
