// Package backoff computes how long to wait until the next attempt from what is in the status of an object, so that the wait survives a
// restart. (wait.Backoff of apimachinery counts in memory, and is used wherever that is enough.)
package backoff

import (
	"math"
	"time"
)

// Exponential returns the wait after a number of failures in a row: first after the first failure, and factor times as long after each
// further one, but at most longest.
func Exponential(first time.Duration, factor float64, failures int64, longest time.Duration) time.Duration {
	wait := float64(first) * math.Pow(factor, float64(max(failures-1, 0)))
	return time.Duration(min(wait, float64(longest)))
}

// Proportional returns half of the time waited so far, within bounds. So the time between attempts grows by half, and only the beginning of
// the wait has to be known.
func Proportional(waited, shortest, longest time.Duration) time.Duration {
	return min(max(waited/2, shortest), longest)
}

// Left returns how much of total, counted from the creation of an object, is left. It is never more than total: the API server, which
// records the creation to the second, may have another clock.
func Left(total time.Duration, created, now time.Time) time.Duration {
	age := now.Sub(created)
	if age < -total {
		return 0 // the clocks differ too much
	}
	return min(max(0, total-age), total)
}
