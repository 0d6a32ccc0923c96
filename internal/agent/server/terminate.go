package server

import "time"

const (
	// terminationReserve is how long before the agent is killed everything has to have ended.
	terminationReserve = 5 * time.Second
	// lingerTimeout is how long the agent goes on to answer after its last operation has ended: what is on its disk goes with
	// the pod, so the controller has to take the result before.
	lingerTimeout = 20 * time.Second
)

// terminate ends the operation that runs, and answers calls until the controller has recorded and forgotten all that are
// over, or long enough. The agent is killed at the given time, which is the grace from now.
func (s *Server) terminate(killed time.Time, grace time.Duration) {
	// Of a short grace, half of it.
	reserve := min(terminationReserve, grace/2)
	s.engine.shutdown(killed.Add(-reserve))
	timer := time.NewTimer(min(lingerTimeout, time.Until(killed.Add(-reserve/2))))
	defer timer.Stop()
	s.engine.awaitForgotten(timer.C)
}
