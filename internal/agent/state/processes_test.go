package state

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A lock and a record name a process by its ID. By now the ID may belong to a thread of another pulumi process, which has the same name.
func TestThreadIsNotTheProcessThatIsRecorded(t *testing.T) {
	g := NewWithT(t)
	executable, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	program := filepath.Base(executable)
	tasks, err := os.ReadDir("/proc/self/task")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(tasks)).To(BeNumerically(">", 1))
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(startTime(id) != "").To(Equal(id == os.Getpid()))
		g.Expect(runsSince(id, program, time.Now())).To(Equal(id == os.Getpid()))
	}
}

// The agent may be killed between creating a record and writing it, and a process may end before it is recorded. The ID belongs to another
// process later: here to the process of the test.
func TestEmptyRecordIsOfNoProcessThatRuns(t *testing.T) {
	g := NewWithT(t)
	s := &Stack{Dir: t.TempDir()}
	g.Expect(os.Mkdir(s.processDir(), 0o700)).To(Succeed())
	s.Started(os.Getpid())
	g.Expect(s.alive(os.Getpid())).To(BeTrue())
	g.Expect(s.LeftOver()).To(BeEmpty())

	g.Expect(os.Truncate(s.recordPath(os.Getpid()), 0)).To(Succeed())
	g.Expect(s.alive(os.Getpid())).To(BeFalse())
	g.Expect(s.LeftOver()).To(ConsistOf(os.Getpid()))
	s.Recovered()
	g.Expect(s.records()).To(BeEmpty())
}
