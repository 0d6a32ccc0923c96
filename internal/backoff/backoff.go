// Package backoff computes how long to wait until the next attempt from what an object's status remembers, so that the wait survives
// a restart. (wait.Backoff of apimachinery counts in memory, and is used wherever that is enough.)
package backoff

import (
	"math"
	"time"
)

// Exponential returns the wait after a number of failures in a row: first, and factor times as long after each further one, at most
// longest.
func Exponential(first time.Duration, factor float64, failures int64, longest time.Duration) time.Duration {
	wait := float64(first) * math.Pow(factor, float64(max(failures-1, 0)))
	return time.Duration(min(wait, float64(longest)))
}

// Proportional returns half of what was waited so far, within bounds: the time between attempts grows by half, and nothing has to be
// remembered but when the waiting began.
func Proportional(waited, shortest, longest time.Duration) time.Duration {
	return min(max(waited/2, shortest), longest)
}

// Left returns how much of a time since the creation of an object is left, at most all of it: the API server, which dates the creation to
// the second, may have another clock.
func Left(total time.Duration, created, now time.Time) time.Duration {
	age := now.Sub(created)
	if age < -total {
		return 0 // then its clock says nothing
	}
	return min(max(0, total-age), total)
}
