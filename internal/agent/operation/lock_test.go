package operation_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// noProcess is a process ID that no process has.
const noProcess = 4_000_000

// longAgo is before the start of every process of these tests.
var longAgo = time.Date(2026, 1, 21, 2, 26, 40, 0, time.UTC)

// namedPulumi runs a program with the name of the CLI, and returns its process ID.
func namedPulumi(t *testing.T) int {
	t.Helper()
	g := NewWithT(t)
	sleep, err := exec.LookPath("sleep")
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(sleep)
	g.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(t.TempDir(), "pulumi")
	g.Expect(os.WriteFile(path, content, 0o755)).To(Succeed())
	cmd := exec.CommandContext(t.Context(), path, "300")
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// lock puts a lock into the backend, as a pulumi of the user who runs the test would leave it, and returns its path.
func (f *fixture) lock(host string, pid int, since time.Time) (path string) {
	f.t.Helper()
	me, err := user.Current()
	f.Expect(err).NotTo(HaveOccurred())
	path = filepath.Join(f.state, ".pulumi", "locks", "organization", "demo", "dev", "11111111-2222-3333-4444-555555555555.json")
	f.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	content := fmt.Appendf(nil, `{"pid":%d,"username":%q,"hostname":%q,"timestamp":%q}`, pid, me.Username, host, since.UTC().Format(time.RFC3339))
	f.Expect(os.WriteFile(path, content, 0o644)).To(Succeed())
	return path
}

// pulumi runs the CLI as a user does, in the directory of the program.
func (f *fixture) pulumi(args ...string) {
	f.t.Helper()
	f.exec(tool(f.t, "pulumi"), "", nil, args...)
}

// oldestWith is pulumi with the oldest CLI, what it reads from its standard input, and more environment variables.
func (f *fixture) oldestWith(input string, env []string, args ...string) {
	f.t.Helper()
	f.exec(tool(f.t, "pulumi-oldest"), input, env, args...)
}

func (f *fixture) exec(pulumi, input string, env []string, args ...string) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), pulumi, append([]string{"--non-interactive"}, args...)...)
	cmd.Dir = f.project
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "PULUMI_HOME="+filepath.Join(f.home, ".pulumi"), "PULUMI_BACKEND_URL=file://"+f.state,
		"PULUMI_CONFIG_PASSPHRASE="+passphrase, "PATH="+filepath.Dir(f.options.Pulumi)+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	output, err := cmd.CombinedOutput()
	f.Expect(err).NotTo(HaveOccurred(), string(output))
}

func TestLockOfAnotherIsReportedAndLeftAlone(t *testing.T) {
	suite.Long(t, "further locks; see TestKilledCLIIsInterruptedAndLeavesNoProcess and the recorded failures")
	f := newDeployed(t)
	me, err := user.Current()
	f.Expect(err).NotTo(HaveOccurred())
	host, err := os.Hostname()
	f.Expect(err).NotTo(HaveOccurred())
	pulumi, now := namedPulumi(t), time.Now().UTC().Truncate(time.Second)
	for _, test := range []struct {
		name, host string
		pid        int
		since      time.Time
		exclusive  bool
		// interrupted is for how long an operation had run at that time that was interrupted an hour later; zero when there was none.
		interrupted time.Duration
		released    bool
	}{
		{"of another host", "elsewhere", noProcess, longAgo, true, time.Minute, false},
		{"of this host, by a process that is not ours", host, noProcess, longAgo, false, time.Minute, false},
		{"of this host, by another pulumi that lives", host, pulumi, now, true, time.Minute, false},
		{"of this host, which is ours alone, by a process that is gone", host, noProcess, longAgo, true, time.Minute, true},
		{"of a pod with the same name elsewhere, whose update is older than this agent", host, noProcess, longAgo, true, 0, false},
		{"of a pod with the same name elsewhere, whose update began after ours was interrupted", host, noProcess, longAgo, true, 2 * time.Hour, false},
		{"of a pod with the same name elsewhere, whose update began before ours", host, noProcess, longAgo, true, -time.Minute, false},
		{"of this host, with the process ID of another program", host, os.Getpid(), longAgo, true, time.Minute, true},
		{"of a pod with the same name elsewhere, which took it while this agent was there", host, noProcess, now.Add(time.Hour), true, time.Minute, false},
		{"of this host, with the process ID of a pulumi that was started later", host, pulumi, longAgo, true, time.Minute, true},
	} {
		f.options.ExclusiveHost = test.exclusive
		f.restart()
		theirs := f.lock(test.host, test.pid, test.since)
		after := func(request *agentpb.StartOperationRequest) {
			if request.AfterInterruption = test.interrupted != 0; request.AfterInterruption {
				start := test.since.Add(-test.interrupted)
				request.Interrupted = []*agentpb.Period{{Start: timestamppb.New(start), End: timestamppb.New(start.Add(time.Hour))}}
			}
		}
		if test.released {
			f.Expect(f.run(up, after).GetState()).To(Equal(succeeded), test.name)
			f.Expect(f.locks()).To(BeEmpty(), test.name)
			continue
		}
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT, up, after)
		f.Expect(operation.GetMessage()).To(ContainSubstring("the stack is currently locked by 1 lock(s)"))
		holder := operation.GetLockHolder()
		f.Expect([]any{holder.GetUser(), holder.GetHost(), holder.GetPid()}).To(Equal([]any{me.Username, test.host, int64(test.pid)}), test.name)
		f.Expect(holder.GetSince().AsTime()).To(Equal(test.since))
		f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("cancel ")), test.name)
		f.Expect(f.locks()).To(ConsistOf(theirs), test.name)
		f.Expect(os.Remove(theirs)).To(Succeed())
	}
}

func TestPendingOperationsOfAPodThatWasKilledAreLookedAtInTheNext(t *testing.T) {
	suite.Long(t, "further things that an earlier operation leaves")
	f := sleeper(t, "seconds: 1000", func(options *runner.Options) { options.ExclusiveHost = true })
	period := &agentpb.Period{Start: timestamppb.Now()}
	_, ended := f.start()
	f.Expect(syscall.Kill(f.cli(), syscall.SIGKILL)).To(Succeed())
	f.await(ended)
	period.End = timestamppb.Now()
	f.Expect(f.locks()).To(HaveLen(1))

	// The records of the agent are gone with the pod.
	f.Expect(os.RemoveAll(filepath.Join(f.home, ".automation"))).To(Succeed())
	f.restart()
	for range 2 {
		operation := f.run(up, afterInterruption, func(request *agentpb.StartOperationRequest) { request.Interrupted = []*agentpb.Period{period} })
		f.Expect(operation.GetState()).To(Equal(failed))
		f.Expect(operation.GetMessage()).To(ContainSubstring("could create it twice"))
		f.Expect(f.locks()).To(BeEmpty())
	}
	f.Expect(f.noted()).NotTo(MatchRegexp("(?s)create start.*create start"))
}
