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

// stop waits until the process ended or ctx is done, and in the latter case makes the process end:
//
//  1. SIGINT: pulumi starts nothing new, asks its providers to cancel, and waits for what runs.
//  2. After the grace, SIGINT again: it ends its plugins, saves the state and releases the lock; what ran is recorded
//     as pending.
//  3. After terminate, SIGKILL, to pulumi and to all its descendants: a provider that lives on would finish a
//     change which nobody records.
//
// Only pulumi itself gets the SIGINTs: it decides when its plugins may end.
func stop(ctx context.Context, process *os.Process, grace, terminate time.Duration, marker string, ended <-chan struct{}) stopOutcome {
	if grace <= 0 {
		grace = helperGrace
	}
	select {
	case <-ended:
		return stopOutcome{}
	case <-ctx.Done():
	}
	for _, patience := range []time.Duration{grace, terminate} {
		// An error means that it has ended.
		_ = process.Signal(syscall.SIGINT)
		if endsWithin(patience, ended) {
			return stopOutcome{stopped: true}
		}
	}
	// Its descendants first: once it is dead they are harder to find. It must not start new ones meanwhile.
	_ = process.Signal(syscall.SIGSTOP)
	endDescendants(marker, process.Pid, true)
	_ = process.Kill()
	return stopOutcome{stopped: true, killed: true}
}

func endsWithin(patience time.Duration, ended <-chan struct{}) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}
