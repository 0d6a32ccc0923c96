package operation_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The agent's directory, with the records that show whose the lock is, may be removed with the agent.
func TestAgentThatEndsLeavesNoLockOfAProcessThatWasKilled(t *testing.T) {
	suite.Long(t, "further things that an earlier operation leaves")
	f := sleeper(t, "seconds: 1000, ignoreCancel: true")
	cancel, ended := f.start()
	f.Expect(f.locks()).To(HaveLen(1))
	cli := f.cli()
	cancel(runner.ErrShutdown)
	f.Expect(syscall.Kill(cli, syscall.SIGKILL)).To(Succeed())
	operation := f.await(ended)
	f.Expect(operation.GetState()).To(Equal(interrupted))
	f.Expect(f.locks()).To(BeEmpty())

	// A lock of somebody else stays.
	theirs := f.lock("elsewhere", noProcess, longAgo)
	f.Expect(f.run(up).GetMessage()).NotTo(BeEmpty())
	f.Expect(f.locks()).To(ConsistOf(theirs))
}

func TestLockThatTheCLICouldNotRemoveIsReleased(t *testing.T) {
	suite.Long(t, "further things that an earlier operation leaves")
	f := sleeper(t, "seconds: 1")
	_, ended := f.start()
	locks := filepath.Join(f.state, ".pulumi", "locks")
	f.Expect(os.Rename(locks, locks+".away")).To(Succeed())
	operation := f.await(ended)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(os.Rename(locks+".away", locks)).To(Succeed())
	f.Expect(f.locks()).To(HaveLen(1))

	f.restart()
	f.succeed(up)
	f.Expect(f.locks()).To(BeEmpty())

	// A process that has the ID of a process of this agent, but lived at another time, was not a process of this agent.
	entries, err := filepath.Glob(filepath.Join(f.home, ".automation", "stacks", "*", "processes", "*-*"))
	f.Expect(err).NotTo(HaveOccurred())
	var start, end int64
	var pid int
	f.Expect(fmt.Sscanf(filepath.Base(entries[0]), "%d-%d-%d", &start, &end, &pid)).Error().NotTo(HaveOccurred())
	hostname, err := os.Hostname()
	f.Expect(err).NotTo(HaveOccurred())
	for _, since := range []int64{start - 10, end + 1} {
		theirs := f.lock(hostname, pid, time.Unix(since, 0))
		f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT, up)
		f.Expect(f.locks()).To(ConsistOf(theirs))
	}
	// A process that found the stack locked is not recorded, because it lived at the same time as the holder of the lock.
	f.Expect(filepath.Glob(filepath.Join(f.home, ".automation", "stacks", "*", "processes", "*-*"))).To(HaveLen(len(entries)))
}
