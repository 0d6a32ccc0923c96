package main

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// These tests run the agent in a process of its own, with the real pulumi CLI.

// program returns a program whose output is the revision.
func program(revision int) string {
	return fmt.Sprintf("name: demo\nruntime: yaml\noutputs:\n  revision: %d\n  token: {fn::secret: canary-output-%d}\n", revision, revision)
}

func TestAnArtifactBecomesASucceededUpdate(t *testing.T) {
	b := newBench(t)
	a := b.start()
	for revision := 1; revision <= 2; revision++ {
		id := fmt.Sprint("update-", revision)
		b.Expect(a.StartOperation(t.Context(), b.update(id, "sha256:none"))).Error().To(MatchError(client.ErrSourceMissing))
		digest := b.push(a, program(revision))
		final := b.succeed(a, b.update(id, digest))
		b.Expect(string(final.GetOutputs()["revision"].GetValue())).To(Equal(fmt.Sprint(revision)))
		b.Expect(final.GetOutputs()["token"]).To(And(
			HaveField("Secret", true), HaveField("Value", []byte(fmt.Sprintf(`"canary-output-%d"`, revision)))))
	}
	b.Expect(a.ForgetOperation(t.Context(), "update-1")).To(Succeed())
	b.Expect(a.ForgetOperation(t.Context(), "update-2")).To(Succeed())
	b.expectNoSecrets()
}

// expectNoSecrets checks that nothing that the agent wrote contains a canary.
func (b *bench) expectNoSecrets() {
	b.t.Helper()
	b.Expect(b.log.String()).NotTo(ContainSubstring("canary"))
	err := filepath.WalkDir(b.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(b.dir, "source")) {
			return err
		}
		content, err := os.ReadFile(path)
		b.Expect(strings.Contains(string(content), "canary")).To(BeFalse(), path)
		return err
	})
	b.Expect(err).NotTo(HaveOccurred())
}

func TestAnOperationOutlivesTheConnectionThatStartedIt(t *testing.T) {
	b := newBench(t)
	a, digest, open := b.startGated()
	b.Expect(a.Close()).To(Succeed())

	var err error
	a.Client, err = client.New("unix:"+b.socket, client.Options{})
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(a.GetInfo(t.Context())).To(HaveField("Operations", ConsistOf(HaveField("State", agentpb.OperationState_OPERATION_STATE_RUNNING))))
	again, err := a.StartOperation(t.Context(), b.update("a", digest))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(again.GetState()).To(Equal(agentpb.OperationState_OPERATION_STATE_RUNNING))
	open()
	final := b.wait(a, "a")
	b.Expect(final.GetState()).To(Equal(agentpb.OperationState_OPERATION_STATE_SUCCEEDED), final.GetMessage())
	b.Expect(strings.Count(b.log.String(), "operation started")).To(Equal(1))
}

func TestAnAgentThatWasKilledSaysThatTheOperationWasInterrupted(t *testing.T) {
	b := newBench(t)
	a, digest, open := b.startGated()
	b.Expect(b.signal(a, syscall.SIGKILL)).To(Equal(-1))
	_ = a.Close()

	next := b.start()
	b.Expect(next.GetOperation(t.Context(), "a")).To(And(
		HaveField("State", agentpb.OperationState_OPERATION_STATE_INTERRUPTED),
		HaveField("Message", "the agent ended while pulumi ran, perhaps for lack of memory; the outcome is not known")))
	again, err := next.StartOperation(t.Context(), b.update("a", digest))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(again.GetState()).To(Equal(agentpb.OperationState_OPERATION_STATE_INTERRUPTED))

	// The source is still there, and the stack is not lost: once the orphaned pulumi is gone, an update succeeds.
	open()
	attempt := 0
	b.Eventually(func() agentpb.OperationState {
		attempt++
		id := fmt.Sprint("retry-", attempt)
		b.Expect(next.StartOperation(t.Context(), b.update(id, digest))).Error().NotTo(HaveOccurred())
		return b.wait(next, id).GetState()
	}).WithTimeout(patience).Should(Equal(agentpb.OperationState_OPERATION_STATE_SUCCEEDED))
}

func TestAnAgentThatIsStoppedLetsPulumiStop(t *testing.T) {
	b := newBench(t)
	a, digest, open := b.startGated()
	b.Expect(b.signal(a, syscall.SIGTERM)).To(Equal(0))
	_ = a.Close()
	b.Expect(b.socket).NotTo(BeAnExistingFile())

	open()
	next := b.start()
	b.Expect(next.GetOperation(t.Context(), "a")).To(HaveField("State", agentpb.OperationState_OPERATION_STATE_INTERRUPTED))
	// No lock is left behind.
	b.succeed(next, b.update("b", digest))
}

func TestOnlyASIGINTEndsTheAgentAtOnce(t *testing.T) {
	b := newBench(t)
	deaf := filepath.Join(t.TempDir(), "deaf") // exists once pulumi ignores signals
	stubborn := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' version '*) exec %q \"$@\";; esac\ntrap '' INT TERM\n: > %q\nwhile [ -e %q ]; do sleep 0.05; done\n",
		b.cli, deaf, b.gate)
	b.cli = b.script("pulumi", stubborn)
	a := b.start("--termination-grace=10m")
	digest := b.push(a, program(1))
	b.closeGate()
	b.startUpdate(a, b.update("a", digest))
	b.Eventually(deaf).WithTimeout(patience).Should(BeAnExistingFile())
	for range 3 {
		b.Expect(a.process.Signal(syscall.SIGTERM)).To(Succeed())
		// The agent waits for pulumi, and refuses new operations.
		b.Eventually(func() error {
			_, err := a.StartOperation(t.Context(), b.update("b", digest))
			return err
		}).WithTimeout(patience).Should(MatchError(client.ErrUnavailable))
		b.Consistently(a.exit).WithTimeout(200 * time.Millisecond).ShouldNot(Receive())
	}
	b.Expect(b.signal(a, syscall.SIGINT)).To(Equal(exitForced))
}

func TestNobodyCanConnectBeforeTheAgentCanAnswer(t *testing.T) {
	b := newBench(t)
	asked := filepath.Join(b.bin, "asked")
	open := b.closeGate()
	b.cli = b.script("pulumi", fmt.Sprintf("#!/bin/sh\ntouch %q\nwhile [ -e %q ]; do sleep 0.05; done\nexec %q \"$@\"\n", asked, b.gate, b.cli))
	connected := make(chan error, 1)
	go func() {
		defer open()
		for {
			if _, err := os.Stat(asked); err == nil {
				break
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		connection, err := net.Dial("unix", b.socket)
		if err == nil {
			_ = connection.Close()
		}
		connected <- err
	}()

	b.start()

	b.Expect(connected).To(Receive(HaveOccurred()))
}
