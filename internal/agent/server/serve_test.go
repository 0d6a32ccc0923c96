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
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

func TestAnAgentThatNobodyNeedsEnds(t *testing.T) {
	g := NewWithT(t)
	runner := newScriptedRunner()
	server, err := New(Options{Dir: t.TempDir(), Runner: runner, IdleTimeout: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	g.Expect(err).NotTo(HaveOccurred())
	defer server.Close()
	address := "unix:" + filepath.Join(shortDir(t), "s")
	listener, err := Listen(address)
	g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(context.Background(), listener) }()

	// A running operation keeps it, although nobody calls.
	agent, err := client.New(address, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	defer agent.Close()
	g.Expect(agent.StartOperation(t.Context(), request("a"))).Error().NotTo(HaveOccurred())
	g.Consistently(ended).WithTimeout(time.Second).ShouldNot(Receive())
	runner.end <- &proto.Operation{State: succeeded}

	// Health checks do not.
	stop := make(chan struct{})
	defer close(stop)
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	g.Expect(err).NotTo(HaveOccurred())
	defer connection.Close()
	health := func() (*grpc_health_v1.HealthCheckResponse, error) {
		return grpc_health_v1.NewHealthClient(connection).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	}
	g.Expect(health()).To(HaveField("Status", grpc_health_v1.HealthCheckResponse_SERVING))
	go func() {
		for ticker := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-ticker.C:
				_, _ = health()
			case <-stop:
				return
			}
		}
	}()
	g.Eventually(ended).WithTimeout(patience).Should(Receive(MatchError(ErrIdle)))
}

func TestAnOpenWatchKeepsTheAgent(t *testing.T) {
	g := NewWithT(t)
	a := newActivity()
	end := a.begin(proto.Agent_WatchOperation_FullMethodName)
	g.Expect(a.idle()).To(BeZero())
	end()
	g.Eventually(a.idle).Should(BeNumerically(">", 0))
}

func TestAStoppingAgentStartsNothing(t *testing.T) {
	a := startAgent(t, t.TempDir())
	ending, release := make(chan struct{}), make(chan struct{})
	a.runner.run = func(ctx context.Context, _ call) *proto.Operation {
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
	// It answers until the operation has ended.
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
	// One that waits gets it when the first ends.
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
