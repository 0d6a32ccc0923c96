package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMedianIsTheMiddleOfWhateverOrder(t *testing.T) {
	g := NewWithT(t)
	g.Expect(samples{3, 1, 2}.median()).To(Equal(time.Duration(2)))
	g.Expect(samples{4, 1, 3, 2}.median()).To(Equal(time.Duration(2)))
	g.Expect(samples{7}.median()).To(Equal(time.Duration(7)))
}

func TestWrapperNotesEachCallAndKeepsTheExitCode(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	cli := filepath.Join(dir, "cli")
	g.Expect(os.WriteFile(cli, []byte("#!/bin/sh\necho \"$2\"\nexit \"$1\"\n"), 0o700)).To(Succeed())
	wrapped, calls, err := wrap(t.TempDir(), cli)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls.read()).To(BeEmpty())

	before := time.Now()
	output, err := exec.Command(wrapped, "0", "two words").Output()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(output)).To(Equal("two words\n"))
	g.Expect(exec.Command(wrapped, "5").Run()).To(MatchError("exit status 5"))

	made, err := calls.read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made).To(HaveLen(2))
	// The clock of the script has hundredths of a second, and so has what it is compared with.
	const exactness = 30 * time.Millisecond
	g.Expect(made[0].start).To(BeTemporally("~", before, time.Since(before)+exactness))
	g.Expect(made[0].end).To(BeTemporally(">=", made[0].start))
	g.Expect(made[1].start).To(BeTemporally(">=", made[0].end))
	g.Expect(made[1].end).To(BeTemporally("<=", time.Now().Add(exactness)))
	g.Expect(made[0].command).To(Equal("0 two words"))
	g.Expect(calls.reset()).To(Succeed())
	g.Expect(calls.read()).To(BeEmpty())
}

func TestCommandIsWhatStandsBetweenFlags(t *testing.T) {
	g := NewWithT(t)
	g.Expect(commandOf([]string{"--non-interactive", "stack", "init", "--stack", "dev"})).To(Equal("stack init"))
	g.Expect(commandOf([]string{"version"})).To(Equal("version"))
	g.Expect(commandOf([]string{"--help"})).To(BeEmpty())
	g.Expect(commandOf(nil)).To(BeEmpty())
}

func TestBareTimesAreThoseOfPulumi(t *testing.T) {
	g := NewWithT(t)
	update, err := parseBare("1000.10 1001.30\n0m0.010s 0m0.020s\n0m1.250s 1m0.500s\n")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(update.wall).To(BeNumerically("~", 1200*time.Millisecond, time.Millisecond))
	g.Expect(update.cpu).To(Equal(time.Minute + 1750*time.Millisecond))
	for _, output := range []string{"", "1 2\n0m0s 0m0s", "1 2\nx\nx y", "1\n0m0s 0m0s\n0m0s 0m0s"} {
		_, err := parseBare(output)
		g.Expect(err).To(HaveOccurred(), output)
	}
}

func TestExceededLimitIsAnErrorOnAQuietMachineOnly(t *testing.T) {
	g := NewWithT(t)
	quiet, busy := &machine{busy: []float64{0.01, 0.1}}, &machine{busy: []float64{0.01, 0.9}}
	l := &limits{}
	l.check("first", 1, 1)
	g.Expect(l.judge(io.Discard, quiet, true)).To(Succeed())
	l.check("second", 1.01, 1)
	g.Expect(l.judge(io.Discard, quiet, true)).To(MatchError(And(ContainSubstring("second: 1.01"), Not(ContainSubstring("first")))))
	g.Expect(l.judge(io.Discard, busy, true)).To(Succeed())
	g.Expect(l.judge(io.Discard, quiet, false)).To(Succeed())
}

func TestPodsThatDoNotStayAsTheyWereAreFound(t *testing.T) {
	g := NewWithT(t)
	pod := func(name string, uid types.UID, restarts int32) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{RestartCount: restarts}}},
		}
	}
	before := restarts{}
	before.note([]corev1.Pod{pod("same", "1", 3), pod("gone", "2", 0), pod("replaced", "3", 0), pod("restarted", "4", 0)})
	g.Expect(before.changed([]corev1.Pod{pod("same", "1", 3), pod("replaced", "9", 0), pod("restarted", "4", 2), pod("new", "5", 1)})).To(Equal([]string{
		"containers of pod ns/restarted were started again 2 times", "pod ns/gone is gone", "pod ns/replaced was replaced",
	}))
}

func TestContainerIsFoundInBothVersionsOfCgroups(t *testing.T) {
	g := NewWithT(t)
	mounts := "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n" +
		"cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
	old := containerOf(7, mounts, "3:memory:/pods/a\n2:cpu,cpuacct:/pods/a\n0::/\n")
	g.Expect(old).To(Equal(container{pid: 7, memoryGroup: "/sys/fs/cgroup/memory/pods/a", processorGroup: "/sys/fs/cgroup/cpu/pods/a"}))
	unified := containerOf(7, "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/pods/a\n")
	g.Expect(unified).To(Equal(container{pid: 7, memoryGroup: "/sys/fs/cgroup/pods/a", processorGroup: "/sys/fs/cgroup/pods/a", unified: true}))
}

func TestProcessesAreKnownWithTheirTimeAndMemory(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	own, _, err := processCPU(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	for time.Since(begin) < 5*time.Second {
		if now, _, _ := processCPU(os.Getpid()); now > own {
			break
		}
	}
	now, _, err := processCPU(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now).To(And(BeNumerically(">", own), BeNumerically("<", own+time.Minute)))
	used, err := processMemory(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(used.resident).To(And(BeNumerically(">", 1<<20), BeNumerically("<", 1<<30)))
	g.Expect(used.anonymous + used.file).To(BeNumerically("<=", used.resident))
}

func TestRequestsAreCountedByWhatTheyAreAbout(t *testing.T) {
	g := NewWithT(t)
	g.Expect(countRequests(`# TYPE apiserver_request_total counter
apiserver_request_total{code="200",group="g",resource="stacks",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="409",group="g",resource="stacks",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="200",group="",resource="leases",subresource="",verb="PUT"} 9
apiserver_request_duration_seconds_count{resource="stacks",verb="PATCH"} 4
apiserver_request_total{code="200",group="",resource="secrets",subresource="",verb="GET"} 1.2e+02
`)).To(Equal(map[string]int{"PATCH stacks/status": 4, "GET secrets": 120}))
}
