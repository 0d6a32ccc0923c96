package app

import (
	"math"
	"runtime/debug"
	"testing"

	. "github.com/onsi/gomega"
)

func TestMemoryLimitLeavesRoomForTheKernel(t *testing.T) {
	g := NewWithT(t)
	before := debug.SetMemoryLimit(512 << 20)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	limitMemory()
	g.Expect(debug.SetMemoryLimit(-1)).To(And(BeNumerically(">", 460<<20), BeNumerically("<", 461<<20)))

	debug.SetMemoryLimit(math.MaxInt64)
	limitMemory()
	g.Expect(debug.SetMemoryLimit(-1)).To(BeEquivalentTo(int64(math.MaxInt64)), "none is none")
}
