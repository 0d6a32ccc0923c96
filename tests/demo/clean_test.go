package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/background"
)

// start starts a process whose output goes to a file. The channel is closed when it has ended.
func start(g *WithT, t *testing.T, log string) (process *os.Process, ended <-chan struct{}) {
	file, err := os.Create(log)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	cmd := exec.Command("sleep", "600")
	cmd.Stdout = file
	g.Expect(cmd.Start()).To(Succeed())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // unless the test has seen to it
		<-done
	})
	return cmd.Process, done
}

func TestCleanEndsWhatACrashLeftAndNothingElse(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	parent, err := records()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.MkdirAll(parent, 0o700)).To(Succeed())
	crashed := filepath.Join(t.TempDir(), "stack-demo-1")
	g.Expect(os.Mkdir(crashed, 0o700)).To(Succeed())

	_, leftEnded := start(g, t, filepath.Join(crashed, "server.log"))
	stranger, strangerEnded := start(g, t, crashed+"0.log")
	// The id of the crashed demo belongs to the stranger by now.
	recorded, err := procfs.Identify(stranger.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	recorded.StartTime--
	content, err := json.Marshal(background.Record{Process: recorded, Dir: crashed})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(parent, "1.json"), content, 0o600)).To(Succeed())

	out := gbytes.NewBuffer()
	g.Expect(cleanAll(out)).To(Succeed())

	g.Expect(out).To(gbytes.Say("removed the demo in %s", crashed))
	g.Eventually(leftEnded).Should(BeClosed())
	g.Expect(strangerEnded).NotTo(BeClosed())
	g.Expect(crashed).NotTo(BeADirectory())
	g.Expect(cleanAll(out)).To(Succeed())
	g.Expect(out).To(gbytes.Say("nothing to clean up"))
}
