package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

func TestAnAgentThatNobodyNeedsEnds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		runner := newScriptedRunner()
		server, err := New(Options{Dir: dir, Runner: runner, IdleTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
		g.Expect(err).NotTo(HaveOccurred())
		defer server.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		go server.endWhenIdle(ctx, cancel)
		after := func(pause time.Duration) error {
			time.Sleep(pause)
			synctest.Wait()
			return context.Cause(ctx)
		}

		g.Expect(after(59 * time.Second)).To(Succeed())
		_, err = server.executor.start(request("a"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after(time.Hour+30*time.Second)).To(Succeed(), "an operation keeps it, although nobody calls")
		runner.end <- &agentpb.Operation{State: succeeded}
		g.Expect(after(59*time.Second)).To(Succeed(), "the time counts from the end of the operation")
		call := server.activity.begin(agentpb.Agent_WatchOperation_FullMethodName)
		g.Expect(after(time.Hour)).To(Succeed(), "an open watch keeps it, too")
		call()
		g.Expect(after(59*time.Second)).To(Succeed(), "the time counts from the end of the call")
		server.activity.begin(grpc_health_v1.Health_Check_FullMethodName)
		g.Expect(after(2*time.Second)).To(MatchError(ErrIdle), "a health check is no call")
	})
}

func TestAStoppingAgentStartsNothing(t *testing.T) {
	a := startAgent(t, t.TempDir())
	ending, release := make(chan struct{}), make(chan struct{})
	a.runner.run = func(ctx context.Context, _ call) *agentpb.Operation {
		<-ctx.Done()
		close(ending)
		<-release
		return stopped(ctx)
	}
	a.accept(request("a"))
	a.Expect(a.GetInfo(t.Context())).NotTo(BeNil())
	done := make(chan error, 1)
	go func() { done <- a.stop() }()
	a.Eventually(ending).WithTimeout(patience).Should(BeClosed())
	a.Expect(a.StartOperation(t.Context(), request("b"))).Error().To(MatchError(client.ErrUnavailable))
	// The agent answers until the operation has ended.
	a.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("State", queued))
	close(release)
	a.Eventually(done).WithTimeout(patience).Should(Receive(BeNil()))
}

func TestTheSocketIsForItsOwnerOnly(t *testing.T) {
	g := NewWithT(t)
	socket := filepath.Join(shortDir(t), "s")
	listener, err := Listen("unix:" + socket)
	g.Expect(err).NotTo(HaveOccurred())
	info, err := os.Stat(socket)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	g.Expect(listener.Close()).To(Succeed())
	g.Expect(socket).NotTo(BeAnExistingFile())
}

func TestASocketThatADeadAgentLeftIsReplaced(t *testing.T) {
	g := NewWithT(t)
	socket := filepath.Join(shortDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	g.Expect(err).NotTo(HaveOccurred())
	dead.SetUnlinkOnClose(false)
	g.Expect(dead.Close()).To(Succeed())
	g.Expect(socket).To(BeAnExistingFile())
	for _, form := range []string{"unix:", "unix://"} {
		listener, err := Listen(form + socket)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(listener.Close()).To(Succeed())
	}
}

func TestAddressesThatCannotBeServed(t *testing.T) {
	g := NewWithT(t)
	dir := shortDir(t)
	live, err := Listen("unix:" + filepath.Join(dir, "live"))
	g.Expect(err).NotTo(HaveOccurred())
	defer live.Close()
	write(t, dir, map[string]string{"file": "precious"})
	for address, message := range map[string]string{
		"unix:" + filepath.Join(dir, "live"):         "another process listens there",
		"unix:" + filepath.Join(dir, "file"):         "something that is not a socket",
		"unix:" + filepath.Join(dir, "missing", "s"): "no such file or directory",
		"unix:relative": "not absolute",
		"unix:" + filepath.Join(dir, strings.Repeat("x", 107)): "more than the 107 that the system allows",
		"nowhere": "missing port",
	} {
		g.Expect(Listen(address)).Error().To(MatchError(ContainSubstring(message)), address)
	}
	g.Expect(os.ReadFile(filepath.Join(dir, "file"))).To(BeEquivalentTo("precious"))
	longest := "unix:" + filepath.Join(dir, strings.Repeat("x", maxSocketPath-len(dir)-1))
	listener, err := Listen(longest)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(listener.Close()).To(Succeed())
}

func TestADirectoryHasOneAgent(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "new")
	unlock, err := Lock(t.Context(), dir)
	g.Expect(err).NotTo(HaveOccurred())
	now, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(Lock(now, dir)).Error().To(MatchError(ContainSubstring("has another agent")))
	// A call that waits gets the lock when the first agent ends.
	locked := make(chan error, 1)
	go func() {
		unlockSecond, err := Lock(t.Context(), dir)
		if err == nil {
			unlockSecond()
		}
		locked <- err
	}()
	g.Consistently(locked).WithTimeout(3 * lockInterval).ShouldNot(Receive())
	unlock()
	g.Eventually(locked).WithTimeout(patience).Should(Receive(BeNil()))
}

func TestAnAgentNeedsItsDirectory(t *testing.T) {
	g := NewWithT(t)
	_, err := New(Options{Dir: filepath.Join(t.TempDir(), "missing"), Runner: newScriptedRunner(), Log: slog.New(slog.DiscardHandler)})
	g.Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue())
}
