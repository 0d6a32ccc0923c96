// Package allocation measures how much memory a call allocates, for tests of what hostile input may cost.
package allocation

import (
	"math"
	"runtime"

	"github.com/stack-controller/stack-controller/tests/suite"
)

// Of returns how many bytes the call allocates in all, at least: what goes on in the background counts, too, so the call is
// made three times. Under the race detector, which allocates for itself and empties pools, it is made once and the result is 0;
// "make test" runs the tests that measure memory without it as well: see suite.WithoutRaceDetector.
func Of(call func()) uint64 {
	if suite.RaceDetector {
		call()
		return 0
	}
	least := uint64(math.MaxUint64)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		call()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}
