package supervise

import (
	"bufio"
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

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
)

// TestMain lets a test run this test binary as a program that uses a supervisor and is then killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_VICTIM_DIR"); dir != "" {
		victim(dir)
		return
	}
	os.Exit(m.Run())
}

// victim starts a shell with an orphaned grandchild, prints their ids and hangs.
func victim(dir string) {
	s, err := Start(filepath.Join(dir, "supervisor.log"))
	if err != nil {
		panic(err)
	}
	if err := s.RemoveAtEnd(filepath.Join(dir, "remove")); err != nil {
		panic(err)
	}
	process, err := s.Run(shell(dir, orphan))
	if err != nil {
		panic(err)
	}
	fmt.Println(process.PID())
	select {}
}

// orphan leaves a process behind in its own session, as an agent does, and keeps running.
const orphan = `setsid sh -c 'echo $$ > orphan.pid; exec sleep 600' & sleep 600`

func shell(dir, script string) Command {
	return Command{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir,
		Env: os.Environ(), Log: filepath.Join(dir, "shell.log")}
}

func startSupervisor(g *WithT, t *testing.T) (*Supervisor, string) {
	dir := t.TempDir()
	s, err := Start(filepath.Join(dir, "supervisor.log"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.Close() })
	return s, dir
}

func readPID(dir string) func() int {
	return func() int {
		content, err := os.ReadFile(filepath.Join(dir, "orphan.pid"))
		if err != nil {
			return 0
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil {
			return 0
		}
		return pid
	}
}

func alive(pid int) bool {
	stat, err := procfs.ReadStat(pid)
	return err == nil && !stat.Ended()
}

func TestWhatAKilledSupervisorLeftIsSwept(t *testing.T) {
	g := NewWithT(t)
	// With its own cache, this test does not see other supervisors and their leftovers.
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	s, dir := startSupervisor(g, t)
	doomed := filepath.Join(dir, "doomed")
	g.Expect(os.Mkdir(doomed, 0o700)).To(Succeed())
	g.Expect(s.RemoveAtEnd(doomed)).To(Succeed())
	_, err := s.Run(shell(dir, orphan))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(readPID(dir)).ShouldNot(BeZero())
	left := readPID(dir)()
	other, _ := startSupervisor(g, t)

	g.Expect(syscall.Kill(s.PID(), syscall.SIGKILL)).To(Succeed())
	g.Eventually(s.ended).Should(BeClosed())
	g.Expect(alive(left)).To(BeTrue(), "there is something to sweep")

	g.Expect(leftovers.Sweep(t.Output())).To(Succeed())
	g.Expect(alive(left)).To(BeFalse())
	g.Expect(doomed).NotTo(BeADirectory())
	g.Expect(alive(other.PID())).To(BeTrue())
	g.Expect(other.Close()).To(Succeed())
	g.Expect(leftovers.Records("", true)).To(BeEmpty())
	g.Expect(leftovers.Records("", false)).To(BeEmpty())
}

func TestProcessReportsItsOutputAndItsEnd(t *testing.T) {
	g := NewWithT(t)
	s, dir := startSupervisor(g, t)

	process, err := s.Run(shell(dir, "echo out; echo err >&2; exit 3"))
	g.Expect(err).NotTo(HaveOccurred())

	g.Eventually(process.Done()).Should(BeClosed())
	g.Expect(process.Status()).To(Equal("exit status 3"))
	log, err := os.ReadFile(filepath.Join(dir, "shell.log"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(log)).To(Equal("out\nerr\n"))
	g.Expect(process.Signal(syscall.SIGKILL)).To(Succeed(), "a signal to an ended process is nothing")
}

func TestStartOfMissingProgramFails(t *testing.T) {
	g := NewWithT(t)
	s, dir := startSupervisor(g, t)

	_, err := s.Run(Command{Name: "ghost", Path: filepath.Join(dir, "ghost"), Log: filepath.Join(dir, "log")})
	g.Expect(err).To(MatchError(And(ContainSubstring("start ghost"), ContainSubstring("no such file"))))
}

func TestStopAsksFirstAndKillsAfterTheGracePeriod(t *testing.T) {
	g := NewWithT(t)
	s, dir := startSupervisor(g, t)

	polite, err := s.Run(shell(dir, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() ([]byte, error) { return os.ReadFile(filepath.Join(dir, "shell.log")) }).Should(ContainSubstring("ready"))
	g.Expect(polite.Stop(10 * time.Second)).To(Succeed())
	g.Expect(polite.Status()).To(Equal("exit status 7"))

	deaf, err := s.Run(shell(dir, "trap '' TERM; while :; do sleep 0.01; done"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(deaf.Stop(50 * time.Millisecond)).To(Succeed())
	g.Expect(deaf.Status()).To(ContainSubstring("killed"))
}

func TestCloseEndsOrphansAndRemovesDirectories(t *testing.T) {
	g := NewWithT(t)
	s, dir := startSupervisor(g, t)
	doomed := filepath.Join(dir, "doomed")
	g.Expect(os.Mkdir(doomed, 0o700)).To(Succeed())
	g.Expect(s.RemoveAtEnd(doomed)).To(Succeed())
	g.Expect(s.RemoveAtEnd("/tmp")).NotTo(Succeed())

	process, err := s.Run(shell(dir, orphan))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(readPID(dir)).ShouldNot(BeZero())
	left := readPID(dir)()

	g.Expect(s.Close()).To(Succeed())
	g.Expect(process.Done()).To(BeClosed())
	g.Expect(alive(process.PID())).To(BeFalse())
	g.Expect(alive(left)).To(BeFalse())
	g.Expect(doomed).NotTo(BeADirectory())
	_, err = s.Run(shell(dir, "true"))
	g.Expect(err).To(MatchError(errClosed))
}

func TestCloseEndsCgroupsWithAllThatIsInThem(t *testing.T) {
	g := NewWithT(t)
	s, dir := startSupervisor(g, t)
	for _, name := range []string{".", "..", "../x", "a/b", "/"} {
		g.Expect(s.EndCgroupAtEnd(name)).NotTo(Succeed(), name)
	}
	name := fmt.Sprintf("stack-controller-test-%d", os.Getpid())
	paths, err := leftovers.CgroupPaths(name)
	g.Expect(err).NotTo(HaveOccurred())
	if os.Geteuid() != 0 || len(paths) == 0 || os.Mkdir(paths[0], 0o755) != nil {
		t.Skip("cgroups are for root")
	}
	g.Expect(s.EndCgroupAtEnd(name)).To(Succeed())
	below := filepath.Join(paths[0], "below")
	g.Expect(os.Mkdir(below, 0o755)).To(Succeed())
	// The process is not a child of the supervisor: only the cgroup shows that it has to be killed.
	stranger := exec.Command("sleep", "600")
	g.Expect(stranger.Start()).To(Succeed())
	t.Cleanup(func() { _ = stranger.Process.Kill() })
	g.Expect(os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(stranger.Process.Pid)), 0o600)).To(Succeed())
	_, err = s.Run(shell(dir, "sleep 600"))
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(s.Close()).To(Succeed())
	g.Expect(stranger.Wait()).To(MatchError(ContainSubstring("killed")))
	for _, path := range paths {
		g.Expect(path).NotTo(BeADirectory())
	}
}

func TestNothingOutlivesProgramThatIsKilled(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.Mkdir(filepath.Join(dir, "remove"), 0o700)).To(Succeed())
	program := exec.Command("/proc/self/exe")
	program.Env = append(os.Environ(), "TEST_VICTIM_DIR="+dir)
	output, err := program.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(program.Start()).To(Succeed())
	line, err := bufio.NewReader(output).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	server, err := strconv.Atoi(strings.TrimSpace(line))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(readPID(dir)).ShouldNot(BeZero())
	left := readPID(dir)()
	g.Expect(alive(server)).To(BeTrue())
	g.Expect(alive(left)).To(BeTrue())

	g.Expect(program.Process.Kill()).To(Succeed())
	_ = program.Wait() // "signal: killed" is what the test is about

	g.Eventually(func() bool { return alive(server) || alive(left) }, 10*time.Second).Should(BeFalse())
	g.Eventually(filepath.Join(dir, "remove"), 10*time.Second).ShouldNot(BeADirectory())
}
