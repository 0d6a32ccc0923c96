package netns_test

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/cluster/netns"
)

// namespace creates a network namespace with a loopback device. It is removed when the test ends.
func namespace(g *WithT, t *testing.T) *netns.Namespace {
	cluster.Require(t)
	holder := exec.Command("unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep 600")
	output, err := holder.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(holder.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	_, err = bufio.NewReader(output).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	n, err := netns.Open(filepath.Join("/proc", strconv.Itoa(holder.Process.Pid), "ns", "net"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func TestSocketsAreInTheNamespaceAndTheProgramIsNot(t *testing.T) {
	g := NewWithT(t)
	n := namespace(g, t)
	own, err := os.Readlink("/proc/self/ns/net")
	g.Expect(err).NotTo(HaveOccurred())
	listener, err := n.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = connection.Write([]byte("hello\n"))
			_ = connection.Close()
		}
	}()

	_, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	g.Expect(err).To(MatchError(ContainSubstring("refused")), "nobody listens in the program's own namespace")
	var dials sync.WaitGroup
	for range 50 {
		dials.Go(func() {
			connection, err := n.Dial(t.Context(), "tcp", address)
			if !g.Expect(err).NotTo(HaveOccurred()) {
				return
			}
			defer func() { _ = connection.Close() }()
			g.Expect(bufio.NewReader(connection).ReadString('\n')).To(Equal("hello\n"))
		})
	}
	dials.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	g.Expect(err).NotTo(HaveOccurred())
	for _, thread := range threads {
		if link, err := os.Readlink(thread); err == nil {
			g.Expect(link).To(Equal(own))
		}
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	g := NewWithT(t)
	n := namespace(g, t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.Dial(ctx, "tcp", "127.0.0.1:1")
	g.Expect(err).To(MatchError(ContainSubstring("canceled")))
	_, err = n.Dial(t.Context(), "tcp", "server.example:80")
	g.Expect(err).To(MatchError("no name server to ask for server.example"))
}
