package process

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

func TestProcessOfAnEarlierBootDoesNotRun(t *testing.T) {
	g := NewWithT(t)
	self, err := procfs.Identify(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(self.Running()).To(BeTrue())
	self.Boot = "another"
	g.Expect(self.Running()).To(BeFalse())
	g.Expect(openHandle(self)).Error().To(MatchError(procfs.ErrNotRunning))
	g.Expect(directory{}.leftovers(self)).To(BeEmpty())
}

// newDirectory returns the directory of a workspace.
func newDirectory(t *testing.T) directory {
	t.Helper()
	return directory{path: t.TempDir() + "/0123456789ab"}
}

func TestLockIsForOneControllerAtATime(t *testing.T) {
	g := NewWithT(t)
	d := newDirectory(t)
	unlock, err := d.tryLock()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.tryLock()).Error().To(MatchError(unix.EWOULDBLOCK))
	unlock()
	unlock, err = d.tryLock()
	g.Expect(err).NotTo(HaveOccurred())
	unlock()
}

func TestLockOfADirectoryThatWasReplacedIsNotTheLock(t *testing.T) {
	g := NewWithT(t)
	d := newDirectory(t)
	unlockOld, err := d.tryLock()
	g.Expect(err).NotTo(HaveOccurred())
	defer unlockOld()
	g.Expect(d.remove()).To(Succeed())
	unlock, err := d.tryLock()
	g.Expect(err).NotTo(HaveOccurred(), "the new directory has a lock of its own")
	unlock()
}

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	g := NewWithT(t)
	d := newDirectory(t)
	unlock, err := d.tryLock()
	g.Expect(err).NotTo(HaveOccurred())
	defer unlock()
	g.Expect(d.readRecord()).Error().To(MatchError(os.ErrNotExist))
	want := record{Namespace: "team", Name: "app", UID: "1", Agent: procfs.Identity{PID: 1, StartTime: 2, Boot: "b"}}
	g.Expect(d.writeRecord(want)).To(Succeed())
	g.Expect(d.readRecord()).To(Equal(want))
	g.Expect(os.WriteFile(d.recordFile(), []byte("{"), 0o600)).To(Succeed())
	_, err = d.readRecord()
	g.Expect(errors.Is(err, errCorrupt)).To(BeTrue())
}

func TestDirectoryIsRemovedEvenWhereProgramsTookAwayTheirRights(t *testing.T) {
	g := NewWithT(t)
	d := newDirectory(t)
	g.Expect(os.MkdirAll(d.state()+"/a/b", 0o700)).To(Succeed())
	g.Expect(os.WriteFile(d.state()+"/a/b/file", nil, 0o400)).To(Succeed())
	g.Expect(os.Chmod(d.state()+"/a/b", 0o500)).To(Succeed())
	g.Expect(os.Chmod(d.state()+"/a", 0)).To(Succeed())
	g.Expect(d.remove()).To(Succeed())
	g.Expect(d.path).NotTo(BeADirectory())
}

func TestLogIsBounded(t *testing.T) {
	g := NewWithT(t)
	d := newDirectory(t)
	g.Expect(d.rotateLog()).To(Succeed(), "without a log")
	g.Expect(os.Mkdir(d.path, 0o700)).To(Succeed())
	log, err := d.openLog()
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	write := func(text string) {
		g.Expect(log.WriteString(text)).Error().NotTo(HaveOccurred())
	}
	write("small\n")
	g.Expect(d.rotateLog()).To(Succeed())
	g.Expect(d.logSize()).To(Equal(int64(6)))

	write(strings.Repeat("x", 2*maxLogSize) + "end\n")
	g.Expect(d.rotateLog()).To(Succeed())
	g.Expect(d.logSize()).To(BeZero())
	old, err := os.ReadFile(d.log() + ".1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(old).To(HaveLen(maxLogSize))
	g.Expect(bytes.HasSuffix(old, []byte("xend\n"))).To(BeTrue())

	write("goes on\n")
	content, err := os.ReadFile(d.log())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(Equal("goes on\n"), "the process writes on at the beginning")
}

func TestTailOfTheLogIsShortAndOfThisAgentOnly(t *testing.T) {
	g := NewWithT(t)
	d := newDirectory(t)
	g.Expect(d.logTail(0)).To(BeEmpty(), "without a log")
	g.Expect(os.Mkdir(d.path, 0o700)).To(Succeed())
	put := func(text string) { g.Expect(os.WriteFile(d.log(), []byte(text), 0o600)).To(Succeed()) }

	put("one\ntwo\n")
	g.Expect(d.logTail(0)).To(Equal("one\ntwo"))
	g.Expect(d.logTail(4)).To(Equal("two"))
	g.Expect(d.logTail(8)).To(BeEmpty())
	g.Expect(d.logTail(800)).To(Equal("one\ntwo"), "the log was rotated meanwhile")
	put("1\n2\n3\n4\n5\n6\n7\n")
	g.Expect(d.logTail(0)).To(Equal("3\n4\n5\n6\n7"))
	put(strings.Repeat("x", 2*tailSize) + "\nlast\n")
	g.Expect(d.logTail(0)).To(Equal("last"))
	put(strings.Repeat("x", 2*tailSize))
	g.Expect(len(d.logTail(0))).To(BeNumerically("<=", tailSize))
	put("bad \xff byte\n")
	g.Expect(d.logTail(0)).To(Equal("bad ? byte"))
}
