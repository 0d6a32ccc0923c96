package state

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A lock and a record name a process by its id, which may belong to a thread of another pulumi by now: it has that name, too.
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
