package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

// commandLine is the command with which a process was started.
type commandLine struct {
	args []string // with the executable first
	env  []string
}

const agentPathFlag = "--agent-path="

// flag returns the value of a flag that is written as --name=value.
func (c *commandLine) flag(prefix string) (string, bool) {
	for _, arg := range c.args {
		if value, is := strings.CutPrefix(arg, prefix); is {
			return value, true
		}
	}
	return "", false
}

func (c *commandLine) setFlag(prefix, value string) {
	for i, arg := range c.args {
		if strings.HasPrefix(arg, prefix) {
			c.args[i] = prefix + value
		}
	}
}

// pids returns the ids of all processes for whose directory in /proc the function returns true.
func pids(holds func(dir string) bool) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // only a malformed pattern gives an error
	var found []int
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && holds(dir) {
			found = append(found, pid)
		}
	}
	return found
}

// serverPID finds a server of the control plane by its working directory.
func serverPID(cp *controlplane.ControlPlane, name string) (int, error) {
	want := filepath.Join(cp.Dir, name)
	found := pids(func(dir string) bool {
		target, err := os.Readlink(filepath.Join(dir, "cwd"))
		return err == nil && target == want
	})
	if len(found) != 1 {
		return 0, fmt.Errorf("find the process of %s: there are %d", name, len(found))
	}
	return found[0], nil
}

// commandLineOf reads how a process was started.
func commandLineOf(pid int) (commandLine, error) {
	var lists [2][]string
	for i, file := range []string{"cmdline", "environ"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return commandLine{}, fmt.Errorf("read how process %d was started: %w", pid, err)
		}
		for word := range bytes.SplitSeq(bytes.TrimRight(content, "\x00"), []byte{0}) {
			lists[i] = append(lists[i], string(word))
		}
	}
	return commandLine{args: lists[0], env: lists[1]}, nil
}

// restartServer kills a server of the control plane, calls meanwhile, and starts the server as before, with each argument passed through
// change.
func restartServer(
	ctx context.Context, cp *controlplane.ControlPlane, name string,
	ready func(context.Context) error, meanwhile func(), change func(arg string) string,
) error {
	pid, err := serverPID(cp, name)
	if err != nil {
		return err
	}
	command, err := commandLineOf(pid)
	if err != nil {
		return err
	}
	process, err := procfs.Identify(pid)
	if err == nil {
		err = process.Signal(syscall.SIGKILL)
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	for running(process).PID != 0 {
		if !campaign.Wait(ctx, campaign.PollInterval) {
			return context.Cause(ctx)
		}
	}
	if meanwhile != nil {
		meanwhile()
	}
	args := command.args[1:]
	for i := range args {
		if change != nil {
			args[i] = change(args[i])
		}
	}
	_, err = cp.StartServer(ctx, controlplane.Server{Name: name, Path: command.args[0], Args: args, Env: command.env, Ready: ready})
	return err
}

// signalServer sends a signal to a server of the control plane.
func signalServer(cp *controlplane.ControlPlane, name string, signal syscall.Signal) error {
	pid, err := serverPID(cp, name)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("send %s to %s: %w", signal, name, err)
	}
	return nil
}

// parentOf returns the id of a process's parent, and its name.
func parentOf(dir string) (parent int, name string) {
	pid, _ := strconv.Atoi(filepath.Base(dir))
	stat, err := procfs.ReadStat(pid)
	if err != nil || stat.Ended() {
		return 0, ""
	}
	return stat.Parent, stat.Name
}

// childrenNamed returns the children of a process that have the name.
func childrenNamed(parent int, want string) []int {
	return pids(func(dir string) bool {
		of, name := parentOf(dir)
		return of == parent && name == want
	})
}

// pulumiProcesses returns the pulumi processes, including plugins, whose environment mentions a path in dir and none in the others.
func pulumiProcesses(dir string, others []string) []string {
	var found []string
	pids(func(process string) bool {
		_, name := parentOf(process)
		if !strings.HasPrefix(name, "pulumi") {
			return false
		}
		environ, err := os.ReadFile(filepath.Join(process, "environ"))
		mentions := func(dir string) bool { return bytes.Contains(environ, []byte(dir+"/")) }
		if err != nil || !mentions(dir) || slices.ContainsFunc(others, mentions) {
			return false
		}
		line, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		found = append(found, filepath.Base(process)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		return true
	})
	return found
}

// leaveProcess starts a process that looks as if pulumi had left it behind.
func leaveProcess(t *testing.T) *supervise.Process {
	g := NewWithT(t)
	name := filepath.Join(t.TempDir(), "pulumi-left")
	content, err := os.ReadFile("/bin/sleep")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(name, content, 0o700)).To(Succeed())
	process, err := environment.system.ControlPlane.Supervisor().Run(supervise.Command{
		Name: "pulumi-left", Path: name, Args: []string{"600"}, Env: []string{"PULUMI_HOME=" + environment.dataDir() + "/home"},
		Log: filepath.Join(environment.system.Dir, "left.log"),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = process.Stop(0) }) // an error means that it was stopped
	return process
}

// A Stack whose status is ahead of the truth, and an Update that has not ended, do not count as converged. The controller is stopped
// meanwhile, because it would correct both.
func TestAnUpdateLeftOverAndAnOldCommitAreSeen(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	apps := make([]*campaign.App, 1)
	g.Expect(environment.Renew(ctx, apps, "left")).To(Succeed())
	a := apps[0]
	g.Expect(environment.Audit(apps)).To(Succeed())
	g.Expect(environment.main.stop()).To(Succeed())

	update := &autov1alpha1.Update{
		Namespace: a.Namespace, Name: "left-over",
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: a.Name, StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
	}
	g.Expect(environment.Client.Create(ctx, update)).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, apps)).To(MatchError(ContainSubstring("Update left-over is")))
	g.Expect(environment.Client.Delete(ctx, update)).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, apps)).To(Succeed())

	stack := &pulumiv1.Stack{}
	g.Expect(environment.Client.Get(ctx, a.Key(), stack)).To(Succeed())
	digest := stack.Status.LastUpdate.LastSuccessfulCommit
	stack.Status.LastUpdate.LastSuccessfulCommit = "sha256:old"
	g.Expect(environment.Client.Status().Update(ctx, stack)).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, apps)).To(MatchError(ContainSubstring("with another update than that of the last change")))
	stack.Status.LastUpdate.LastSuccessfulCommit = digest
	g.Expect(environment.Client.Status().Update(ctx, stack)).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, apps)).To(Succeed())

	a.Expect("unheard")
	g.Expect(environment.CheckConverged(ctx, apps)).To(MatchError(ContainSubstring("the request is not handled")))
	a.Expect("")
	g.Expect(a.Push(func() {})).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, apps)).To(MatchError(ContainSubstring("there is no artifact of commit")))

	before := environment.main.started()
	environment.main.start(environment.ctx)
	g.Expect(environment.main.awaitStart(context.WithoutCancel(ctx), before)).To(Succeed())
	g.Expect(a.Remove(ctx)).To(Succeed())
	g.Expect(environment.AwaitConvergence(ctx, apps)).To(Succeed())
}

// A run that leaves anything behind does not count as converged.
func TestLeftoversAreSeen(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	g.Expect(environment.CheckConverged(ctx, nil)).To(Succeed())

	lock := filepath.Join(environment.backend(), ".pulumi", "locks", "organization", "nobody", "dev", "1.json")
	g.Expect(os.MkdirAll(filepath.Dir(lock), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(lock, nil, 0o600)).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, nil)).To(MatchError(ContainSubstring("locks in the backend")))
	g.Expect(os.Remove(lock)).To(Succeed())

	process := leaveProcess(t)
	// The call that starts a program may return before the process has the name and the environment of the program.
	check := func() error { return environment.CheckConverged(ctx, nil) }
	g.Eventually(check).Should(MatchError(And(ContainSubstring("processes"), ContainSubstring("pulumi-left"))))
	g.Expect(process.Stop(0)).To(Succeed())
	g.Expect(environment.CheckConverged(ctx, nil)).To(Succeed())
}

// Unconverged adds no conditions: a Stack whose agent is a process does not need a ready Workspace.
func (s *fixture) Unconverged(context.Context, *campaign.App, bool) error { return nil }

// LeftBehind returns an error if there are locks in the backend or pulumi processes, except for those of failed runs.
func (s *fixture) LeftBehind([]*campaign.App) error {
	if locks := s.locks(); len(locks) > 0 {
		return campaign.NotConverged("locks in the backend: %v", locks)
	}
	if left := s.processes(); len(left) > 0 {
		return campaign.NotConverged("processes: %v", left)
	}
	return nil
}

// Works reports whether a pulumi process uses the directory of the Stack's agent.
func (s *fixture) Works(a *campaign.App) bool {
	return len(pulumiProcesses(s.workspaceDir(a), nil)) > 0
}

// Prepare has nothing to do: the system is still running.
func (s *fixture) Prepare(context.Context, []*campaign.App) error { return nil }

// CheckInvariants adds no checks.
func (s *fixture) CheckInvariants() error { return nil }

// Explain has nothing to add.
func (s *fixture) Explain(context.Context, *campaign.App) string { return "" }

// locks returns the locks in the backend.
func (s *fixture) locks() []string {
	abandoned := s.Abandoned()
	var found []string
	_ = filepath.WalkDir(filepath.Join(s.backend(), ".pulumi", "locks"), func(path string, entry os.DirEntry, err error) error {
		of := func(a *campaign.App) bool { return filepath.Base(filepath.Dir(filepath.Dir(path))) == a.Name }
		if err == nil && !entry.IsDir() && !slices.ContainsFunc(abandoned, of) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// processes returns the pulumi processes of this environment, including plugins.
func (s *fixture) processes() []string {
	var others []string
	for _, a := range s.Abandoned() {
		others = append(others, s.workspaceDir(a))
	}
	return pulumiProcesses(s.system.Dir, others)
}

// Pulumi runs the CLI by hand, in a project of the app's name.
func (s *fixture) Pulumi(ctx context.Context, a *campaign.App, args ...string) error {
	dir, err := os.MkdirTemp(s.system.Dir, "by-hand-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte("name: "+a.Name+"\nruntime: yaml\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.cli, append(args, "--non-interactive")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PULUMI_HOME=" + filepath.Join(dir, "home"), "PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_BACKEND_URL=" + s.BackendURL, "PULUMI_CONFIG_PASSPHRASE=" + passphrase,
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pulumi %s by hand: %w\n%s", args[0], err, output)
	}
	return nil
}
