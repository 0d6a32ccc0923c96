package automation

import "time"

// SetTerminateGrace shortens how long a CLI may take after a second SIGINT.
func (r *Runner) SetTerminateGrace(grace time.Duration) {
	r.terminateGrace = grace
}
