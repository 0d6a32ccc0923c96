package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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
	calls, err := newCallLog(t.TempDir(), cli)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls.read()).To(BeEmpty())

	before := time.Now()
	output, err := exec.Command(calls.wrapper, "0", "two words").Output()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(output)).To(Equal("two words\n"))
	g.Expect(exec.Command(calls.wrapper, "5").Run()).To(MatchError("exit status 5"))

	made, err := calls.read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made).To(HaveLen(2))
	g.Expect(made[0].start).To(BeTemporally(">", before))
	g.Expect(made[0].end).To(BeTemporally(">", made[0].start))
	g.Expect(made[1].start).To(BeTemporally(">", made[0].end))
	g.Expect(calls.reset()).To(Succeed())
	g.Expect(calls.read()).To(BeEmpty())
}
