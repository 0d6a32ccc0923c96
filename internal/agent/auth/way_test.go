package auth

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

// way is a proxy to the API server that can be barred: to the agent, the API server then does not run.
type way struct {
	address string
	// connections counts the connections that were made.
	connections atomic.Int64

	mu     sync.Mutex
	barred bool
	open   []net.Conn
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	w := &way{address: listener.Addr().String()}
	t.Cleanup(func() {
		_ = listener.Close()
		w.bar(true)
	})
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			w.relay(near, to)
		}
	}()
	return w
}

func (w *way) relay(near net.Conn, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if w.barred || err != nil {
		_ = near.Close()
		return
	}
	w.connections.Add(1)
	w.open = append(w.open, near, far)
	go func() { _, _ = io.Copy(far, near) }()
	go func() { _, _ = io.Copy(near, far) }()
}

// bar closes all connections and accepts no new one, or accepts connections again.
func (w *way) bar(barred bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.barred = barred
	if barred {
		for _, connection := range w.open {
			_ = connection.Close()
		}
		w.open = nil
	}
}
