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
	// killReserve is how much of the time before a deadline is kept for killing processes that do not end otherwise, and for recording how
	// they ended.
	killReserve = 10 * time.Second
	// If the time is short, the second signal and the kill get these fractions of it: a third and a sixth.
	secondPart, killPart = 3, 6
)

// stopOutcome is what stop did: it asked the process to end once (stopped), a second time (twice), or killed it.
type stopOutcome struct {
	stopped, twice, killed bool
}

// stop waits until the process has ended (ended is closed), ctx is done, or the time before the deadline is over. In the last two cases, it
// makes the process end:
//
//  1. SIGINT: pulumi starts nothing new, asks its providers to cancel, and waits for running resource operations.
//  2. After the grace, SIGINT again: pulumi ends its plugins, saves the state and releases the lock. Running resource operations are
//     recorded as pending.
//  3. After terminateGrace, SIGKILL to pulumi and all its descendants: a provider that lives on would finish a change that nobody records.
//
// Only pulumi itself receives the SIGINTs: it decides when its plugins may end.
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
			// The process has ended by itself.
			return stopOutcome{}
		}
		if c.deadline.ends(ended, timeout, signal) {
			return stopOutcome{stopped: true, twice: signal > 0}
		}
	}
	// Descendants are killed first: they are harder to find once their parent is dead. The parent must not start new ones meanwhile.
	_ = process.Signal(syscall.SIGSTOP)
	endDescendants(marker, process.Pid, true)
	_ = process.Kill()
	return stopOutcome{stopped: true, twice: true, killed: true}
}

// deadline shortens the time that processes have to end, once it is set.
type deadline struct {
	once sync.Once
	// over[0] is closed when the time for the first SIGINT is over, over[1] when the time for the second one is.
	over [2]chan struct{}
}

func newDeadline() *deadline {
	return &deadline{over: [2]chan struct{}{make(chan struct{}), make(chan struct{})}}
}

// set divides the time until the end: the first signal gets the time that the other steps do not need. Only the first call has an effect.
func (d *deadline) set(end time.Time, terminate time.Duration) {
	d.once.Do(func() {
		left := max(0, time.Until(end))
		kill := left - min(killReserve, left/killPart)
		for signal, after := range []time.Duration{kill - min(terminate, left/secondPart), kill} {
			time.AfterFunc(after, func() { close(d.over[signal]) })
		}
	})
}

// ends reports whether the process ends before the timeout, and before the time for this signal, 0 for the first or 1 for the second, is
// over.
func (d *deadline) ends(ended <-chan struct{}, timeout time.Duration, signal int) bool {
	select {
	case <-ended:
		return true
	case <-time.After(timeout):
	case <-d.over[signal]:
	}
	return false
}
