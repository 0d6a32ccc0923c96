package client

import (
	"context"
	"net"
	"strings"

	"golang.org/x/time/rate"
)

const (
	// readRate, in bytes per second, and readBurst, in bytes, bound what is read from one agent. Nothing else limits data that no call asks
	// for, such as pings and settings. The largest answers fit into the burst.
	readRate  = 1 << 20
	readBurst = 16 << 20
)

// dial opens a connection to an agent. address has the format that gRPC passes to a dialer.
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

// throttled is a connection that is read no faster than its limiter permits. Only the agent has to wait.
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
