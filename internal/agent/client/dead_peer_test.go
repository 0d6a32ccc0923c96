package client_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// A node that lost its power, or a network that drops packets, closes no connection.
func TestADeadPeerIsNoticedWithinAMinute(t *testing.T) {
	suite.Long(t, "waits half a minute for a peer that is gone")
	t.Parallel()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer()
	agentpb.RegisterAgentServer(server, &fakeAgent{watch: func(stream grpc.ServerStreamingServer[agentpb.Operation]) error {
		_ = stream.Send(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_RUNNING})
		<-stream.Context().Done()
		return nil
	}})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	address, cut := lossyPath(t, listener.Addr().String())
	agent, err := client.New(address, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	defer agent.Close()
	ended := make(chan error, 1)
	seen := make(chan struct{}, 1)
	go func() {
		_, err := agent.WatchOperation(t.Context(), "a", func(*agentpb.Operation) { seen <- struct{}{} })
		ended <- err
	}()
	g.Eventually(seen).WithTimeout(patience).Should(Receive())
	cut()
	g.Eventually(ended).WithTimeout(time.Minute).Should(Receive(MatchError(client.ErrUnavailable)))
}

// lossyPath relays connections to the address until cut is called: from then on it drops all bytes without notice.
func lossyPath(t *testing.T, to string) (address string, cut func()) {
	t.Helper()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	var lost atomic.Bool
	relay := func(to, from net.Conn) {
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if !lost.Load() {
				_, _ = to.Write(buffer[:n])
			}
		}
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				return
			}
			t.Cleanup(func() { _, _ = near.Close(), far.Close() })
			go relay(near, far)
			go relay(far, near)
		}
	}()
	return listener.Addr().String(), func() { lost.Store(true) }
}
