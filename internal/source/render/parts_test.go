package render

import (
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestProgramOfVeryManySmallPartsIsRefusedBeforeItIsDecoded(t *testing.T) {
	// A megabyte, which the API server accepts, in a field that the controller does not know.
	many := func(objects int) *pulumiv1.Program {
		program := &pulumiv1.Program{}
		program.Name = "many"
		program.Program.Verbatim = []byte(`{"later":[` + strings.Repeat(`{"":0},`, objects) + `0]}`)
		return program
	}
	g := NewWithT(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Program(many(150_000))
	runtime.ReadMemStats(&after)
	t.Logf("%d MiB", (after.TotalAlloc-before.TotalAlloc)>>20)
	g.Expect(err).To(MatchError(Equal("program: has more than 100000 keys and values: make it smaller, or use a source with files")))
	g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 4<<20), "bytes")
	_, err = Program(many(33_000))
	g.Expect(err).NotTo(HaveOccurred())
}
