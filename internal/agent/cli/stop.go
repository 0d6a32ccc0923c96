package cli

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// helperGrace is how long a command that changes no resources may take to stop after a first SIGINT.
	helperGrace = 10 * time.Second
	// terminateGrace is how long pulumi may take after a second SIGINT. It then gives its plugins 5 s, writes the state
	// and releases the lock.
	terminateGrace = 15 * time.Second
	// killReserve is how much of the time before a deadline is kept for killing what does not end otherwise, and for
	// recording how it ended.
	killReserve = 10 * time.Second
	// Of a short time the second signal and the kill get these parts.
	secondPart, killPart = 3, 6
)

// stopOutcome says what stop had to do: it asked, it asked twice, it killed.
type stopOutcome struct {
	stopped, twice, killed bool
}

// stop waits until the process ended, when ended is closed, or ctx or the time before the deadline is over, and then makes the process end:
//
//  1. SIGINT: pulumi starts nothing new, asks its providers to cancel, and waits for what runs.
//  2. After the grace, SIGINT again: it ends its plugins, saves the state and releases the lock; what ran is recorded
//     as pending.
//  3. After terminateGrace, SIGKILL, to pulumi and to all its descendants: a provider that lives on would finish a
//     change which nobody records.
//
// Only pulumi itself gets the SIGINTs: it decides when its plugins may end.
func (c *CLI) stop(ctx context.Context, process *os.Process, marker string, grace time.Duration, ended <-chan struct{}) stopOutcome {
	select {
	case <-ended:
		return stopOutcome{}
	case <-ctx.Done():
	case <-c.deadline.over[0]:
	}
	if grace <= 0 {
		grace = helperGrace
	}
	for signal, timeout := range []time.Duration{grace, c.terminateGrace} {
		if err := process.Signal(syscall.SIGINT); err != nil && signal == 0 {
			// It has ended by itself.
			return stopOutcome{}
		}
		if c.deadline.ends(ended, timeout, signal) {
			return stopOutcome{stopped: true, twice: signal > 0}
		}
	}
	// Its descendants first: once it is dead they are harder to find. It must not start new ones meanwhile.
	_ = process.Signal(syscall.SIGSTOP)
	endDescendants(marker, process.Pid, true)
	_ = process.Kill()
	return stopOutcome{stopped: true, twice: true, killed: true}
}

// deadline shortens the time that processes have to end, once it is set.
type deadline struct {
	once sync.Once
	// over are closed when the first SIGINT and when the second one has had its time.
	over [2]chan struct{}
}

func newDeadline() *deadline {
	return &deadline{over: [2]chan struct{}{make(chan struct{}), make(chan struct{})}}
}

// set divides the time until the end: the first signal gets what is not needed to end by force. Only the first call counts.
func (d *deadline) set(end time.Time, terminate time.Duration) {
	d.once.Do(func() {
		left := max(0, time.Until(end))
		kill := left - min(killReserve, left/killPart)
		for signal, after := range []time.Duration{kill - min(terminate, left/secondPart), kill} {
			time.AfterFunc(after, func() { close(d.over[signal]) })
		}
	})
}

// ends waits until the process has ended; false when the timeout, or the time for this signal, the first or the second, is over.
func (d *deadline) ends(ended <-chan struct{}, timeout time.Duration, signal int) bool {
	select {
	case <-ended:
		return true
	case <-time.After(timeout):
	case <-d.over[signal]:
	}
	return false
}
