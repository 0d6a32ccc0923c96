package client

import (
	"context"
	"net"
	"strings"

	"golang.org/x/time/rate"
)

const (
	// readRate, in bytes per second, and readBurst, in bytes, bound what is read of one agent. What no call asks for, such as pings and
	// settings, has no other limit. The burst has room for the largest answers.
	readRate  = 1 << 20
	readBurst = 16 << 20
)

// dial opens the connection to an agent; address is as gRPC gives it to a dialer.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, found := strings.CutPrefix(address, "unix:"); found {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	open, cancel := context.WithCancel(context.Background())
	return &throttled{Conn: connection, open: open, cancel: cancel, limiter: rate.NewLimiter(readRate, readBurst)}, nil
}

// throttled is a connection that is read no faster than its limiter says. The agent waits meanwhile, and nobody else does.
type throttled struct {
	net.Conn
	open    context.Context
	cancel  context.CancelFunc
	limiter *rate.Limiter
}

// Read implements net.Conn.
func (t *throttled) Read(into []byte) (int, error) {
	n, err := t.Conn.Read(into)
	if n > 0 {
		// It fails when the connection is closed; the next Read says so. No read is larger than the burst.
		_ = t.limiter.WaitN(t.open, n)
	}
	return n, err
}

// Close implements net.Conn.
func (t *throttled) Close() error {
	t.cancel()
	return t.Conn.Close()
}
