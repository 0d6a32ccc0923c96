package procfs_test

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// patience is how long tests wait for something that takes milliseconds on a quiet machine.
const patience = 20 * time.Second

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

func TestIDThatBelongsToAThreadIsNoProcess(t *testing.T) {
	g := NewWithT(t)
	self, err := procfs.Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	id := thread(t)
	g.Expect(syscall.Kill(id, 0)).To(Succeed(), "the kernel takes the thread for its process")

	g.Expect(procfs.ReadStat(id)).Error().To(MatchError(procfs.ErrNotRunning))
	g.Expect(procfs.OpenPID(id)).Error().To(MatchError(procfs.ErrNotRunning))
	g.Expect(procfs.Identify(id)).Error().To(MatchError(procfs.ErrNotRunning))

	recorded := procfs.Identity{PID: id, StartTime: self.StartTime, Boot: self.Boot}
	g.Expect(recorded.Running()).To(BeFalse())
	g.Expect(recorded.Open()).Error().To(MatchError(procfs.ErrNotRunning))
	g.Expect(recorded.Signal(syscall.SIGKILL)).To(MatchError(procfs.ErrNotRunning))
	g.Expect(self.Running()).To(BeTrue())
}

func TestIDThatBelongsToAnotherProcessIsNotTheRecordedOne(t *testing.T) {
	g := NewWithT(t)
	self, err := procfs.Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	for _, other := range []procfs.Identity{
		{PID: self.PID, StartTime: self.StartTime - 1, Boot: self.Boot}, {PID: self.PID, StartTime: self.StartTime, Boot: "another"},
		{Boot: self.Boot}, {PID: -1, Boot: self.Boot},
	} {
		g.Expect(other.Running()).To(BeFalse())
		g.Expect(other.Signal(syscall.SIGKILL)).To(MatchError(procfs.ErrNotRunning))
	}
}

func TestSignalReachesTheProcessUntilItHasEnded(t *testing.T) {
	g := NewWithT(t)
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	g.Expect(cmd.Start()).To(Succeed())
	process, err := procfs.Identify(cmd.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(process.Running()).To(BeTrue())

	g.Expect(process.Signal(syscall.SIGTERM)).To(Succeed())

	g.Eventually(process.Running).WithTimeout(patience).Should(BeFalse(), "also before somebody has waited for it")
	var ended *exec.ExitError
	g.Expect(errors.As(cmd.Wait(), &ended)).To(BeTrue())
	g.Expect(ended.Sys().(syscall.WaitStatus).Signal()).To(Equal(syscall.SIGTERM))
	g.Expect(process.Signal(syscall.SIGTERM)).To(MatchError(procfs.ErrNotRunning))
}

func TestIDsHaveThisProcessAndNoThread(t *testing.T) {
	g := NewWithT(t)
	g.Expect(procfs.IDs()).To(And(ContainElement(os.Getpid()), Not(ContainElement(thread(t)))))
}
