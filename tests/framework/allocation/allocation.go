// Package allocation measures how much memory a call allocates, for tests that bound the cost of hostile input.
package allocation

import (
	"math"
	"runtime"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// Of returns how many bytes the call allocates. Allocations in the background count too, so Of makes the call three times and returns the
// smallest result. The race detector allocates memory itself and empties pools, so under it Of makes the call once and returns 0; "make
// test" also runs the tests that measure memory without the race detector: see suite.WithoutRaceDetector.
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
