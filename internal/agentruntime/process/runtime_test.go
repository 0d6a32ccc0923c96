package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

func TestEnsureStartsAnAgentThatAnswersCalls(t *testing.T) {
	g, r, workspace := newBench(t, Options{})
	start(t, r)

	status, err := r.Ensure(t.Context(), workspace, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status).To(Equal(agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: "the agent is starting"}))
	var event any
	g.Eventually(r.Events(), patience).Should(Receive(&event))
	g.Expect(event).To(And(HaveField("Object.GetName()", "app"), HaveField("Object.GetNamespace()", "team")))

	dir := r.directory(keyFor(workspace))
	status, err = r.Ensure(t.Context(), workspace, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(status).To(And(beReady(), HaveField("Address", "unix:"+dir.socket())))
	agent, err := r.Connect(t.Context(), workspace)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(call(g, r, workspace).GetAgentVersion()).To(Equal("stub"))
	g.Expect(r.Agents()).To(Equal(1))
	g.Expect(r.Connect(t.Context(), workspace)).To(BeIdenticalTo(agent), "the connection is shared")

	for path, mode := range map[string]os.FileMode{dir.path: 0o700, dir.log(): 0o600, dir.recordFile(): 0o600} {
		found, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.Mode().Perm()).To(Equal(mode), path)
	}
}

func TestAgentGetsNoMoreOfTheEnvironmentThanIsAllowed(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBECONFIG", "/controller/kubeconfig")
	t.Setenv("HTTPS_PROXY", "http://proxy.invalid")
	r := newRuntime(t, Options{Dir: newDir(t), Environ: []string{"HTTPS_PROXY", "NOT_SET"}})
	workspace := newWorkspace("app", "1")
	agent := makeReady(g, r, workspace)

	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", agent.PID))
	g.Expect(err).NotTo(HaveOccurred())
	environment := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(content), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		environment[name] = value
	}
	g.Expect(environment).To(And(
		HaveKeyWithValue("PATH", HaveSuffix(os.Getenv("PATH"))),
		HaveKeyWithValue("HOME", HavePrefix(r.directory(keyFor(workspace)).path+"/")),
		HaveKeyWithValue("TMPDIR", HavePrefix(r.directory(keyFor(workspace)).path+"/")),
		HaveKeyWithValue("HTTPS_PROXY", "http://proxy.invalid"),
	))
	for name := range environment {
		g.Expect(name).To(BeElementOf("PATH", "HOME", "TMPDIR", "HTTPS_PROXY", "LANG", "TZ", "USER"))
	}
}

func TestTwoControllersStartOneAgent(t *testing.T) {
	g := NewWithT(t)
	const workspaces = 8
	dir := newDir(t)
	runtimes := []*Runtime{newRuntime(t, Options{Dir: dir}), newRuntime(t, Options{Dir: dir})}
	var calls sync.WaitGroup
	for i := range workspaces {
		for _, r := range runtimes {
			calls.Go(func() { _, _ = r.Ensure(context.Background(), newWorkspace(fmt.Sprint("app-", i), "1"), false) })
		}
	}
	calls.Wait()
	for i := range workspaces {
		workspace := newWorkspace(fmt.Sprint("app-", i), "1")
		agent := makeReady(g, runtimes[0], workspace)
		g.Expect(makeReady(g, runtimes[1], workspace)).To(Equal(agent))
	}
	g.Expect(agentsIn(dir)).To(HaveLen(workspaces))
}

// agentsIn lists the agents whose socket is in the directory.
func agentsIn(dir string) []int {
	var found []int
	for _, pid := range processesOf(filepath.Dir(stubPath)) {
		arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(arguments), dir+"/") {
			found = append(found, pid)
		}
	}
	return found
}

func TestWorkspaceThatIsMadeAgainGetsANewDirectory(t *testing.T) {
	g := NewWithT(t)
	r := newRuntime(t, Options{Dir: newDir(t)})
	old := newWorkspace("app", "1")
	first := makeReady(g, r, old)
	state := r.directory(keyFor(old)).state() + "/result"
	g.Expect(os.WriteFile(state, nil, 0o600)).To(Succeed())

	second := makeReady(g, r, newWorkspace("app", "2"))

	g.Expect(second).NotTo(Equal(first))
	g.Expect(first.Running()).To(BeFalse())
	g.Expect(state).NotTo(BeAnExistingFile())
	g.Expect(recorded(g, r, old).UID).To(Equal(types.UID("2")))
}

func TestDeleteLeavesNoProcessAndNoFile(t *testing.T) {
	g, r, workspace := newBench(t, Options{AgentArgs: []string{"--child"}})
	start(t, r)
	agent := makeReady(g, r, workspace)
	children := childrenOf(g, r, workspace, agent)
	g.Expect(children).To(HaveLen(1))

	g.Expect(r.Delete(t.Context(), keyFor(workspace))).To(MatchError(agentruntime.ErrEnding))
	deleteAll(g, r, workspace)

	g.Expect(agent.Running()).To(BeFalse())
	g.Expect(children[0].Running()).To(BeFalse())
	g.Expect(os.ReadDir(r.options.Dir)).To(BeEmpty())
	g.Expect(r.supervisors).To(BeEmpty())
	g.Expect(r.Connect(t.Context(), workspace)).Error().To(MatchError(agentruntime.ErrNoAgent))
}

// childrenOf returns the processes that the agent started.
func childrenOf(g *WithT, r *Runtime, workspace *autov1alpha1.Workspace, agent procfs.Identity) []procfs.Identity {
	handles, err := r.directory(keyFor(workspace)).leftovers(agent)
	g.Expect(err).NotTo(HaveOccurred())
	var children []procfs.Identity
	for _, h := range handles {
		children = append(children, h.Identity)
	}
	return children
}

func TestWorkspaceThatIsMadeAgainDuringItsRemovalIsReadyInTheEnd(t *testing.T) {
	g, r, workspace := newBench(t, Options{AgentArgs: []string{"--stubborn"}, stopGrace: 50 * time.Millisecond})
	first := makeReady(g, r, workspace)
	g.Expect(r.Delete(t.Context(), keyFor(workspace))).To(MatchError(agentruntime.ErrEnding))

	second := makeReady(g, r, newWorkspace("app", "2"))

	g.Expect(second).NotTo(Equal(first))
	g.Expect(first.Running()).To(BeFalse())
}

func TestDeleteKillsAnAgentThatDoesNotEndAndConnectLeavesItToThat(t *testing.T) {
	g, r, workspace := newBench(t, Options{AgentArgs: []string{"--stubborn"}, stopGrace: 2 * time.Second})
	agent := makeReady(g, r, workspace)
	g.Expect(r.Delete(t.Context(), keyFor(workspace))).To(MatchError(agentruntime.ErrEnding))
	removing := r.supervisors[keyFor(workspace)]

	g.Expect(r.Connect(t.Context(), workspace)).Error().To(MatchError(agentruntime.ErrNoAgent))
	removing.mu.Lock()
	g.Expect(removing.phase).To(Equal(phaseRemoving))
	removing.mu.Unlock()
	deleteAll(g, r, workspace)
	g.Expect(agent.Running()).To(BeFalse())
	g.Expect(os.ReadDir(r.options.Dir)).To(BeEmpty())
}

func TestWorkspaceThatNobodyEnsuredHasNoAgentAndIsDeletedAtOnce(t *testing.T) {
	g, r, workspace := newBench(t, Options{})
	g.Expect(r.Delete(t.Context(), keyFor(workspace))).To(Succeed())
	g.Expect(r.supervisors).To(BeEmpty())
	g.Expect(r.Connect(t.Context(), workspace)).Error().To(MatchError(agentruntime.ErrNoAgent))
}

func TestDirectoryThatIsTooLongForASocketIsRefused(t *testing.T) {
	g := NewWithT(t)
	dir := "/tmp/" + strings.Repeat("x", maxSocketPath-len("/tmp/")-len("/0123456789ab/agent.sock"))
	options := Options{AgentPath: "true", PulumiPath: "true"}
	options.Dir = dir
	_, err := options.complete()
	g.Expect(err).NotTo(HaveOccurred())
	options.Dir = dir + "x"
	_, err = options.complete()
	g.Expect(err).To(MatchError(ContainSubstring("1 bytes too long")))
}

func TestMissingProgramsAreReportedAtTheStart(t *testing.T) {
	g := NewWithT(t)
	_, err := New(Options{Dir: t.TempDir(), AgentPath: "/none/agent", PulumiPath: "true"})
	g.Expect(err).To(And(MatchError(os.ErrNotExist), MatchError(ContainSubstring("find the agent"))))
	_, err = New(Options{Dir: t.TempDir(), AgentPath: "true", PulumiPath: "/none/pulumi"})
	g.Expect(err).To(And(MatchError(os.ErrNotExist), MatchError(ContainSubstring("find the pulumi CLI"))))
}

func TestFieldsThatMeanNothingForAProcessAreListed(t *testing.T) {
	g, r, workspace := newBench(t, Options{})
	workspace.Spec.ServiceAccountName = autov1alpha1.DefaultServiceAccountName
	g.Expect(r.Ignores(workspace)).To(BeEmpty())
	workspace.Spec.Image = "pulumi/pulumi"
	workspace.Spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{}
	workspace.Spec.Resources.Requests = corev1.ResourceList{}
	g.Expect(r.Ignores(workspace)).To(Equal([]string{"image", "podTemplate"}))
}

func TestRuntimeThatEndedRefusesCalls(t *testing.T) {
	g := NewWithT(t)
	r := newRuntime(t, Options{Dir: newDir(t)})
	start(t, r)()
	workspace := newWorkspace("app", "1")
	_, ensured := r.Ensure(t.Context(), workspace, false)
	_, connected := r.Connect(t.Context(), workspace)
	_, woken := r.Wake(t.Context(), workspace)
	for _, err := range []error{ensured, connected, woken, r.Delete(t.Context(), keyFor(workspace))} {
		g.Expect(errors.Is(err, errStopped)).To(BeTrue())
	}
}
