package client

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/time/rate"
)

// Data that no call asked for, such as pings, is not read faster than the limit.
func TestConnectionIsReadAtALimitedRate(t *testing.T) {
	g := NewWithT(t)
	near, far := net.Pipe()
	go func() {
		for {
			if _, err := far.Write(make([]byte, 16<<10)); err != nil {
				return
			}
		}
	}()
	open, cancel := context.WithCancel(t.Context())
	connection := &throttled{Conn: near, open: open, cancel: cancel, limiter: rate.NewLimiter(1<<20, 64<<10)}
	start := time.Now()
	g.Expect(io.CopyN(io.Discard, connection, 512<<10)).Error().NotTo(HaveOccurred())
	g.Expect(time.Since(start)).To(BeNumerically(">", 400*time.Millisecond))
	g.Expect(connection.Close()).To(Succeed())
	g.Expect(connection.Read(make([]byte, 1))).Error().To(HaveOccurred())
}
