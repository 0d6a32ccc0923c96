package automation

import (
	"context"
	"os"
	"syscall"
	"time"
)

const (
	// defaultGrace is how long pulumi may take to stop after a first SIGINT when the request does not say.
	defaultGrace = 5 * time.Minute
	// helperGrace is the same for commands that change no resources.
	helperGrace = 10 * time.Second
	// terminateGrace is how long pulumi may take after a second SIGINT. It then gives its plugins 5 s, writes the state
	// and releases the lock.
	terminateGrace = 15 * time.Second
)

// stopOutcome says what stop had to do.
type stopOutcome struct {
	stopped, killed bool
}

// stopper makes one process end.
type stopper struct {
	process *os.Process
	marker  string
	// grace and terminate are how long the process has after the first and after the second SIGINT.
	grace, terminate time.Duration
	deadline         *deadline
	// ended is closed when the process has ended.
	ended <-chan struct{}
}

// stop waits until the process ended, or ctx or the time before the deadline is over, and then makes the process end:
//
//  1. SIGINT: pulumi starts nothing new, asks its providers to cancel, and waits for what runs.
//  2. After the grace, SIGINT again: it ends its plugins, saves the state and releases the lock; what ran is recorded
//     as pending.
//  3. After terminate, SIGKILL, to pulumi and to all its descendants: a provider that lives on would finish a
//     change which nobody records.
//
// Only pulumi itself gets the SIGINTs: it decides when its plugins may end.
func (s *stopper) stop(ctx context.Context) stopOutcome {
	select {
	case <-s.ended:
		return stopOutcome{}
	case <-ctx.Done():
	case <-s.deadline.over:
	}
	for signal, patience := range []time.Duration{s.grace, s.terminate} {
		if err := s.process.Signal(syscall.SIGINT); err != nil && signal == 0 {
			// It has ended by itself.
			return stopOutcome{}
		}
		if s.deadline.ends(s.ended, patience, signal) {
			return stopOutcome{stopped: true}
		}
	}
	// Its descendants first: once it is dead they are harder to find. It must not start new ones meanwhile.
	_ = s.process.Signal(syscall.SIGSTOP)
	endDescendants(s.marker, s.process.Pid, true)
	_ = s.process.Kill()
	return stopOutcome{stopped: true, killed: true}
}
