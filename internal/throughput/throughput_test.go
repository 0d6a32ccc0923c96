package throughput

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// endless is a reader that returns a piece of that size every second.
type endless int

func (e endless) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return min(int(e), len(p)), nil
}

// copied reads from the Reader for at most ten minutes, and returns how long it read and why it ended.
func copied(t *testing.T, allowance time.Duration, from *Reader) (lasted time.Duration, cause error) {
	t.Helper()
	start := time.Now()
	deadline, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ctx, stop := Require(deadline, Window, allowance, from.Transferred)
	defer stop()
	buffer := make([]byte, 1<<20)
	for ctx.Err() == nil {
		if _, err := from.Read(buffer); err != nil {
			return time.Since(start), err
		}
	}
	return time.Since(start), context.Cause(ctx)
}

func TestBytePerSecondIsEndedAfterAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		lasted, err := copied(t, 0, NewReader(endless(1)))
		g.Expect(lasted).To(BeNumerically("~", Window, 2*time.Second))
		g.Expect(err).To(MatchError(MatchRegexp(`^the transfer is too slow: (29|30) bytes in 30s, where at least 64 KiB/s are expected$`)))
	})
}

func TestTransferThatStopsIsEndedWithinTwoWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		quick := io.LimitReader(endless(1<<20), 40<<20) // 40 seconds of 1 MiB/s
		lasted, err := copied(t, 0, NewReader(io.MultiReader(quick, endless(0))))
		g.Expect(lasted).To(And(BeNumerically(">", 40*time.Second), BeNumerically("<=", 40*time.Second+2*Window)))
		g.Expect(err).To(BeAssignableToTypeOf(&Error{}))
	})
}

// A server that was quick at first is not allowed to be slow for longer than others.
func TestTransferIsSlowForItsAllowanceAndNoLonger(t *testing.T) {
	for name, tt := range map[string]struct {
		quick int64
		begin time.Duration
	}{
		"from the start": {0, 0},
		"after 1 MiB/s":  {100 << 20, 100 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				lasted, err := copied(t, 2*time.Minute, NewReader(io.MultiReader(io.LimitReader(endless(1<<20), tt.quick), endless(1))))
				g.Expect(lasted - tt.begin).To(And(BeNumerically(">", 2*time.Minute), BeNumerically("<=", 2*time.Minute+2*Window)))
				g.Expect(err).To(MatchError(MatchRegexp(`^the transfer is too slow: \d+ bytes in 30s, where at least 64 KiB/s are expected after 2m0s in all to prepare it$`)))
			})
		})
	}
}

func TestTransferAtTheMinimumGoesOnToItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		_, err := copied(t, 0, NewReader(endless(Minimum*11/10)))
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
	})
}

func TestWhatFollowsTheTransferMayTakeItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		for _, end := range []io.Reader{strings.NewReader("short"), iotest.ErrReader(io.ErrUnexpectedEOF)} {
			reader := NewReader(end)
			ctx, stop := Require(t.Context(), Window, 0, reader.Transferred)
			_, _ = io.Copy(io.Discard, reader)
			time.Sleep(10 * Window)
			g.Expect(ctx.Err()).NotTo(HaveOccurred())
			stop()
			synctest.Wait()
		}
	})
}

func TestStopLeavesNothingRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, stop := Require(t.Context(), Window, 0, func() int64 { return 0 })
		stop()
		synctest.Wait() // the test ends only when no goroutine runs
		g.Expect(context.Cause(ctx)).To(MatchError(context.Canceled))
	})
}
