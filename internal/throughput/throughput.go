// Package throughput ends transfers that are kept alive and hardly move: a server that sends a byte per second, an agent that takes
// one. Without a minimum such a transfer would hold its slot until its deadline, which has to suit the largest transfer.
package throughput

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	// Minimum is how many bytes per second a transfer has to make in each Window, on average.
	Minimum = 64 << 10
	// Window is how long a transfer may be slow. One that stops at a bad moment is ended within two of them.
	Window = 30 * time.Second
)

// Error is why a transfer was ended. It is transient: the next attempt may find a better line.
type Error struct {
	// Transferred is how many bytes passed in the last Window.
	Transferred int64
	Window      time.Duration
	// Allowance is for how long in all it could be slower.
	Allowance time.Duration
}

// Error says how slow the transfer was.
func (e *Error) Error() string {
	text := fmt.Sprintf("the transfer is too slow: %d bytes in %s, where at least %d KiB/s are expected", e.Transferred, e.Window, Minimum>>10)
	if e.Allowance > 0 {
		text += fmt.Sprintf(" after %s in all to prepare it", e.Allowance)
	}
	return text
}

// Require returns a context that is cancelled, with an *Error as its cause, when fewer than Minimum bytes per second pass in a
// window, which is Window outside of tests. The allowance is how long they need not: time to prepare what is sent, of which each window
// takes what it lacks. A transfer that was fast earns none: it could be slow for as long as it likes afterwards.
//
// The function returns how many bytes have passed since the beginning: the count of a Reader or a Counter, or the size of a file that grows.
// What is not a transfer any more, the verification of what was sent for example, is over when it returns a negative number: from
// then on only the deadline of ctx counts. The caller has to call stop when the transfer has ended.
func Require(ctx context.Context, window, allowance time.Duration, transferred func() int64) (guarded context.Context, stop func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	go func() {
		ticks := time.NewTicker(window)
		defer ticks.Stop()
		before, left := int64(0), allowance
		for {
			select {
			case <-guarded.Done():
				return
			case <-ticks.C:
			}
			now := transferred()
			if now < 0 {
				return
			}
			passed := now - before
			left -= max(window-time.Duration(float64(passed)/Minimum*float64(time.Second)), 0)
			if left < 0 {
				cancel(&Error{Transferred: passed, Window: window, Allowance: allowance})
				return
			}
			before = now
		}
	}()
	return guarded, func() { cancel(nil) }
}

// Reader counts what is read through it.
type Reader struct {
	from  io.Reader
	count atomic.Int64
	ended atomic.Bool
}

// NewReader returns a Reader of what can be read from the other one.
func NewReader(from io.Reader) *Reader { return &Reader{from: from} }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (n int, err error) {
	n, err = r.from.Read(p)
	r.count.Add(int64(n))
	if err != nil {
		r.ended.Store(true)
	}
	return n, err
}

// Transferred is what Require asks for: how many bytes were read, or -1 when all were.
func (r *Reader) Transferred() int64 {
	if r.ended.Load() {
		return -1
	}
	return r.count.Load()
}

// Counter counts the bytes that are written to it. It is for transfers that have several parts; see io.TeeReader.
type Counter struct{ count atomic.Int64 }

// Write implements io.Writer. It does not fail.
func (c *Counter) Write(p []byte) (int, error) {
	c.count.Add(int64(len(p)))
	return len(p), nil
}

// Transferred is what Require asks for: how many bytes were written.
func (c *Counter) Transferred() int64 { return c.count.Load() }
