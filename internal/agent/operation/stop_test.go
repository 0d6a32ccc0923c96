package operation_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// long bounds what these tests wait for; nothing takes so long.
const long = 60 * time.Second

// sleeper is a fixture with a stack whose next update creates a resource that takes its time.
func sleeper(t *testing.T, properties string, change ...func(*runner.Options)) *fixture {
	t.Helper()
	f := newDeployed(t, change...)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	f.sleep(properties)
	return f
}

// sleep makes the program one with a resource that sleeps.
func (f *fixture) sleep(properties string) {
	f.t.Helper()
	f.write("Pulumi.yaml", fmt.Sprintf(`
name: demo
runtime: yaml
resources:
  slow:
    type: test:index:Sleep
    properties: {journal: %q, %s}
    options: {version: 0.1.0}
`, f.journal(), properties))
}

func (f *fixture) journal() string {
	return filepath.Join(filepath.Dir(f.home), "journal")
}

// start runs an update in the background, and returns once the resource is being created.
func (f *fixture) start(change ...func(*agentpb.StartOperationRequest)) (cancel context.CancelCauseFunc, ended <-chan *agentpb.Operation) {
	f.t.Helper()
	return f.beginUntil("create start\n", up, change...)
}

func (f *fixture) noted() string {
	content, _ := os.ReadFile(f.journal())
	return string(content)
}

// processesOf returns the IDs of the live processes with the text in their command line.
func processesOf(text string) []int {
	var pids []int
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		content, _ := os.ReadFile(path)
		if strings.Contains(strings.ReplaceAll(string(content), "\x00", " "), text) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// cli returns the process of the update that runs.
func (f *fixture) cli() int {
	f.t.Helper()
	for _, pid := range processesOf("--config-file=" + f.home) {
		return pid
	}
	f.t.Fatal("pulumi does not run")
	return 0
}

func (f *fixture) providers() []int {
	return processesOf(filepath.Join(f.home, ".pulumi", "plugins"))
}

func (f *fixture) locks() []string {
	locks, err := filepath.Glob(filepath.Join(f.state, ".pulumi", "locks", "organization", "demo", "dev", "*.json"))
	f.Expect(err).NotTo(HaveOccurred())
	return locks
}

func TestCauseOfTheCancellationDecidesTheOutcome(t *testing.T) {
	f := sleeper(t, "seconds: 100")
	for _, test := range []struct {
		cause   error
		state   agentpb.OperationState
		failure agentpb.FailureReason
		message string
	}{
		{runner.ErrCancelled, cancelled, agentpb.FailureReason_FAILURE_REASON_UNSPECIFIED, "the operation was cancelled: pulumi stopped gracefully"},
		{runner.ErrTimeout, failed, agentpb.FailureReason_FAILURE_REASON_TIMEOUT, "the operation took longer than its timeout"},
		{runner.ErrShutdown, interrupted, agentpb.FailureReason_FAILURE_REASON_UNSPECIFIED, "the agent is shutting down"},
	} {
		f.Expect(os.RemoveAll(f.journal())).To(Succeed())
		cancel, ended := f.start()
		cancel(test.cause)
		operation := f.await(ended)
		f.Expect(operation.GetState()).To(Equal(test.state))
		f.Expect(operation.GetFailure()).To(Equal(test.failure))
		f.Expect(operation.GetMessage()).To(ContainSubstring(test.message))
		f.Expect(f.noted()).To(ContainSubstring("create aborted"))
		f.Expect(f.locks()).To(BeEmpty())
		f.Expect(f.providers()).To(BeEmpty())
	}
	f.sleep("seconds: 0")
	f.succeed(up)
}

func TestOperationThatIsCancelledBeforeItStartsRunsNothing(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(runner.ErrCancelled)
	operation := f.runContext(ctx, up)
	f.Expect(operation.GetState()).To(Equal(cancelled))
	f.Expect(operation.GetMessage()).To(Equal(runner.ErrCancelled.Error()))
	f.Expect(f.processes()).To(BeEmpty())
}

func TestSecondSignalEndsAProviderThatIgnoresTheFirst(t *testing.T) {
	suite.Long(t, "further providers; see TestCauseOfTheCancellationDecidesTheOutcome")
	f := sleeper(t, "seconds: 100, ignoreCancel: true")
	cancel, ended := f.start(withGrace(time.Second))
	cancel(runner.ErrCancelled)
	operation := f.await(ended)
	f.Expect(operation.GetState()).To(Equal(cancelled))
	f.Expect(operation.GetMessage()).To(ContainSubstring("stopped in the middle of a resource operation"))
	f.Expect(f.locks()).To(BeEmpty())
	f.Expect(f.providers()).To(BeEmpty())

	// Whether the resource exists is not known, so nothing is created on top of it.
	f.restart()
	operation = f.run(up)
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(And(ContainSubstring("urn:pulumi:dev::demo::test:index:Sleep::slow"), ContainSubstring("clear-pending-creates")))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("stack export "), HavePrefix("stack init ")))
}

func TestKilledCLIIsInterruptedAndLeavesNoProcess(t *testing.T) {
	f := sleeper(t, "seconds: 100")
	_, ended := f.start()
	f.Expect(f.providers()).NotTo(BeEmpty())
	f.Expect(syscall.Kill(f.cli(), syscall.SIGKILL)).To(Succeed())

	operation := f.await(ended)
	f.Expect(operation.GetState()).To(Equal(interrupted))
	f.Expect(operation.GetMessage()).To(ContainSubstring("ended by a signal from outside"))
	f.Expect(f.providers()).To(BeEmpty())
	f.Expect(f.locks()).To(HaveLen(1))

	// The pending create is found even though the lock is still there, and after a restart of the agent. The lock is released, because its
	// holder was a process of this agent that is gone. So the commands that the message names work at once.
	f.restart()
	operation = f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, up)
	f.Expect(operation.GetMessage()).To(ContainSubstring("could create it twice"))
	f.Expect(f.locks()).To(BeEmpty())
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("stack export "), HavePrefix("stack init "), HavePrefix("cancel ")))

	// The update above changed nothing. A lock of somebody else stays, because its holder may be repairing the state.
	theirs := f.lock("elsewhere", noProcess, time.Now())
	operation = f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT, up)
	f.Expect(operation.GetLockHolder().GetHost()).To(Equal("elsewhere"))
	f.Expect(f.locks()).To(ConsistOf(theirs))
	f.Expect(os.Remove(theirs)).To(Succeed())
	f.processes()

	f.pulumi("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", "dev")
	f.sleep("seconds: 0")
	f.succeed(up)
	f.Expect(f.noted()).To(MatchRegexp("(?s)^create start\n.*create start\n.*"))
}

func TestDestroyReleasesTheLockOfAKilledUpdate(t *testing.T) {
	suite.Long(t, "further locks; see TestKilledCLIIsInterruptedAndLeavesNoProcess")
	f := sleeper(t, "seconds: 100")
	_, ended := f.start()
	f.Expect(syscall.Kill(f.cli(), syscall.SIGKILL)).To(Succeed())
	f.await(ended)
	f.Expect(f.locks()).To(HaveLen(1))

	operation := f.run(destroy)
	f.Expect(operation.GetMessage()).To(ContainSubstring("all known resources are destroyed"))
	f.Expect(f.processes()).To(ContainElements(HavePrefix("cancel "), HavePrefix("destroy ")))
	f.Expect(f.locks()).To(BeEmpty())

	f.pulumi("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", "dev")
	f.succeed(destroy)
}

func TestCLIThatDoesNotStopIsKilledWithAllItsDescendants(t *testing.T) {
	f := newDeployed(t, func(options *runner.Options) { options.TerminateGrace = time.Second })
	// A CLI that ignores signals, with a child of another process group and an orphan.
	sleep := f.sleepAs("sleep")
	stubborn := fmt.Sprintf("#!/bin/sh\ntrap '' INT TERM\nsetsid %[1]q 1001 &\n(%[1]q 1002 &)\ntouch %[2]q\nwhile :; do %[1]q 1003; done\n", sleep, f.journal())
	f.writeCLI([]byte(stubborn))
	cancel, result := f.beginUntil("", up, withGrace(time.Second))
	sleepers := func() []int { return processesOf(sleep + " 100") }
	f.Eventually(sleepers).WithTimeout(long).Should(HaveLen(3))

	cancel(runner.ErrCancelled)
	operation := f.await(result)
	f.Expect(operation.GetState()).To(Equal(cancelled))
	f.Expect(operation.GetMessage()).To(ContainSubstring("was killed"))
	f.Expect(sleepers()).To(BeEmpty())
}

// sleepAs returns a program that sleeps and has this name, beside the CLI.
func (f *fixture) sleepAs(name string) string {
	f.t.Helper()
	sleep, err := exec.LookPath("sleep")
	f.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(filepath.Dir(f.options.Pulumi), name)
	f.Expect(os.Symlink(sleep, path)).To(Succeed())
	return path
}

func TestPluginsDoNotOutliveTheirCLI(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	plugin, other := f.sleepAs("pulumi-language-left"), f.sleepAs("other")
	// This CLI ends well, and leaves a plugin and another process. It waits until setsid has become them.
	script := fmt.Sprintf("#!/bin/sh\n[ \"$2\" = up ] || exit 0\n(setsid %[1]q 1101 >/dev/null 2>&1 &)\n(setsid %[2]q 1102 >/dev/null 2>&1 &)\n"+
		"for it in 'lef[t]' 'othe[r]'; do until grep -qs \"^%[3]s/.*$it\" /proc/[0-9]*/cmdline; do sleep 0.1; done; done\n",
		plugin, other, filepath.Dir(f.options.Pulumi))
	f.writeCLI([]byte(script))
	f.run(up)
	f.Expect(processesOf(plugin + " 1101")).To(BeEmpty())
	stays := processesOf(other + " 1102")
	f.Expect(stays).To(HaveLen(1))
	f.Expect(syscall.Kill(stays[0], syscall.SIGKILL)).To(Succeed())
}
