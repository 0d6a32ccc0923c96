// Package throughput ends transfers that are alive but make hardly any progress, for example when a server sends, or an agent accepts, one
// byte per second. Without a minimum such a transfer would hold its slot until its deadline, which has to be long enough for the largest
// transfer.
package throughput

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	// Minimum is how many bytes per second a transfer has to move in each Window, on average.
	Minimum = 64 << 10
	// Window is how long a transfer may be slow. A transfer that stops is ended within two windows.
	Window = 30 * time.Second
)

// Error is why a transfer was ended. It is transient: the next attempt may have a better connection.
type Error struct {
	// Transferred is how many bytes passed in the last Window.
	Transferred int64
	Window      time.Duration
	// Allowance is how long in all the transfer was allowed to be slower.
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

// Require returns a context that is cancelled, with an *Error as its cause, when fewer than Minimum bytes per second pass in a window,
// which is Window outside of tests. The allowance is how long in all a transfer may be slower, for example while the content is prepared.
// Each window takes from it the time that the window was short of bytes. A fast transfer does not earn more allowance, because it could
// then be slow for a long time afterwards.
//
// The function transferred returns how many bytes have passed since the beginning: the count of a Reader or a Counter, or the size of a
// file that grows. When it returns a negative number, the transfer is over, and from then on only the deadline of ctx counts, for example
// while the content is verified. The caller has to call stop when the transfer has ended.
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

// NewReader returns a Reader that reads from the other reader.
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

// Transferred returns how many bytes were read, or -1 when nothing more will be read, after the end or an error, as Require
// expects of its argument transferred.
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

// Transferred is a function for Require. It returns how many bytes were written.
func (c *Counter) Transferred() int64 { return c.count.Load() }
