package leftovers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// run starts a process that does nothing, with the changes. The channel is closed when the process has ended.
func run(g *WithT, t *testing.T, change func(*exec.Cmd)) (process *os.Process, ended <-chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	change(cmd)
	g.Expect(cmd.Start()).To(Succeed())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // unless the test has killed it
		<-done
	})
	return cmd.Process, done
}

// newCgroup returns the directory of a new cgroup in one hierarchy, or "" where cgroups cannot be created.
func newCgroup(g *WithT, t *testing.T, name string) string {
	paths, err := CgroupPaths(name)
	g.Expect(err).NotTo(HaveOccurred())
	if len(paths) == 0 || os.Mkdir(paths[0], 0o755) != nil {
		t.Log("cgroups are for root")
		return ""
	}
	t.Cleanup(func() { _ = os.Remove(paths[0]) })
	return paths[0]
}

func TestSweepEndsWhatAKilledProcessLeftAndNothingElse(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	stranger, strangerEnded := run(g, t, func(*exec.Cmd) {})
	killed, err := New("test")
	g.Expect(err).NotTo(HaveOccurred())
	dir := filepath.Join(t.TempDir(), "dir")
	g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
	g.Expect(killed.AddDirectory(dir)).To(Succeed())
	cgroupName := fmt.Sprintf("stack-controller-leftovers-%d", os.Getpid())
	cgroup := newCgroup(g, t, cgroupName)
	g.Expect(killed.AddCgroup(cgroupName)).To(Succeed())
	// The process id of the killed process belongs to the stranger by now.
	killed.Process, err = procfs.Identify(stranger.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	killed.Process.StartTime--
	g.Expect(killed.write()).To(Succeed())
	running, err := New("other")
	g.Expect(err).NotTo(HaveOccurred())
	kept, err := running.NewDirectory("stack-leftovers-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(running.Remove()).To(Succeed()) })

	var left []<-chan struct{}
	for _, change := range []func(*exec.Cmd){
		func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, killed.Environment()) },
		func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Join(dir, "tmp")) },
		func(cmd *exec.Cmd) {
			log, err := os.Create(filepath.Join(dir, "server.log"))
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = log.Close() })
			cmd.Stderr = log
		},
		func(cmd *exec.Cmd) {
			cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "trap '' TERM; exec sleep 600"}
			cmd.Env = append(cmd.Env, killed.Environment())
		},
	} {
		_, ended := run(g, t, change)
		left = append(left, ended)
	}
	if cgroup != "" {
		member, ended := run(g, t, func(*exec.Cmd) {})
		g.Expect(os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(member.Pid)), 0o600)).To(Succeed())
		left = append(left, ended)
	}
	others := []<-chan struct{}{strangerEnded}
	for _, change := range []func(*exec.Cmd){
		func(cmd *exec.Cmd) { cmd.Dir = dir; cmd.Env = append(cmd.Env, "PWD="+dir) }, // a person who looks at the leftovers
		func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "TMPDIR="+dir+"0", running.Environment()) },
	} {
		_, ended := run(g, t, change)
		others = append(others, ended)
	}

	out := gbytes.NewBuffer()
	g.Expect(sweep(out, time.Second)).To(Succeed())
	g.Expect(out).To(gbytes.Say("removed what process %d left: %s, %s\n", stranger.Pid, dir, cgroupName))
	for _, ended := range left {
		g.Eventually(ended).Should(BeClosed())
	}
	g.Expect(dir).NotTo(BeADirectory())
	if cgroup != "" {
		g.Expect(cgroup).NotTo(BeADirectory())
	}
	for _, ended := range others {
		g.Expect(ended).NotTo(BeClosed())
	}
	g.Expect(kept).To(BeADirectory())
	g.Expect(Records("", false)).To(BeEmpty())
	g.Expect(Records("other", true)).To(HaveLen(1))
}

func TestRecordTakesNothingThatIsNotItsOwn(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	r, err := New("test")
	g.Expect(err).NotTo(HaveOccurred())
	for _, dir := range []string{"", "relative", "/", "/tmp", "/tmp/"} {
		g.Expect(r.AddDirectory(dir)).NotTo(Succeed(), dir)
	}
	for _, name := range []string{".", "..", "../x", "a/b", "/"} {
		g.Expect(r.AddCgroup(name)).NotTo(Succeed(), name)
	}
	g.Expect(r.Remove()).To(Succeed())
	g.Expect(Records("", true)).To(BeEmpty())
}

func TestEndAsksTheProcessAndWaits(t *testing.T) {
	g := NewWithT(t)
	process, ended := run(g, t, func(*exec.Cmd) {})
	identity, err := procfs.Identify(process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	r := &Record{Process: identity}
	g.Expect(r.End()).To(Succeed())
	g.Eventually(ended).Should(BeClosed())
	g.Expect(r.End()).To(Succeed(), "it ended before")
}
