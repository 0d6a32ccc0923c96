package automation

import (
	"sync"
	"time"
)

const (
	// killReserve is how much of the time before a deadline is kept for killing what does not end otherwise, and for
	// recording how it ended.
	killReserve = 10 * time.Second
	// Of a short time the second signal and the kill get these parts.
	secondPart, killPart = 3, 6
)

// EndBy makes all processes of the Runner end before the time, whatever grace they have: those that run, asked to stop or
// not, and those that start later. It is for an agent that is going to be killed at a time it knows. Only the first call counts.
func (r *Runner) EndBy(end time.Time) {
	r.deadline.set(time.Now(), end, r.terminateGrace)
}

// deadline cuts the patience with processes, from the moment on that it is set.
type deadline struct {
	mu sync.Mutex
	// limits say when the first SIGINT and when the second one has had its time; zero while there is no deadline.
	limits [2]time.Time
	// known is closed when the limits are set, over when the first of them has passed.
	known, over chan struct{}
}

func newDeadline() *deadline {
	return &deadline{known: make(chan struct{}), over: make(chan struct{})}
}

// set divides the time until the end: the first signal gets what is not needed to end by force.
func (d *deadline) set(now, end time.Time, terminate time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.limits[0].IsZero() {
		return
	}
	left := max(0, end.Sub(now))
	kill := end.Add(-min(killReserve, left/killPart))
	d.limits = [2]time.Time{kill.Add(-min(terminate, left/secondPart)), kill}
	close(d.known)
	time.AfterFunc(time.Until(d.limits[0]), func() { close(d.over) })
}

// ends waits until the process ended; false when the patience, or the time for this signal, the first or the second, is over.
func (d *deadline) ends(ended <-chan struct{}, patience time.Duration, signal int) bool {
	until, known := time.Now().Add(patience), d.known
	for {
		d.mu.Lock()
		if limit := d.limits[signal]; !limit.IsZero() && limit.Before(until) {
			until = limit
		}
		d.mu.Unlock()
		timer := time.NewTimer(time.Until(until))
		select {
		case <-ended:
		case <-timer.C:
			return false
		case <-known:
			timer.Stop()
			known = nil
			continue
		}
		timer.Stop()
		return true
	}
}
