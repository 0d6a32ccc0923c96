package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
	// The script's clock has hundredths of a second, and so does the time that it is compared with.
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

func TestPodsThatDoNotStayAsTheyWereAreFound(t *testing.T) {
	g := NewWithT(t)
	pod := func(name string, uid types.UID, restarts int32) corev1.Pod {
		return corev1.Pod{
			Namespace: "ns", Name: name, UID: uid,
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{RestartCount: restarts}}},
		}
	}
	before := restarts{}
	before.note([]corev1.Pod{pod("same", "1", 3), pod("gone", "2", 0), pod("replaced", "3", 0), pod("restarted", "4", 0)})
	g.Expect(before.changed([]corev1.Pod{pod("same", "1", 3), pod("replaced", "9", 0), pod("restarted", "4", 2), pod("new", "5", 1)})).To(Equal([]string{
		"containers of pod ns/restarted were started again 2 times", "pod ns/gone is gone", "pod ns/replaced was replaced",
	}))
}
