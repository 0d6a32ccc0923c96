package cli

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTailKeepsTheEndInBoundedMemory(t *testing.T) {
	g := NewWithT(t)
	tail := NewTail(100)
	for range 10_000 {
		g.Expect(tail.Write([]byte("a line of text\n"))).Error().NotTo(HaveOccurred())
	}
	g.Expect(tail.String()).To(Equal(strings.Repeat("a line of text\n", 6)))
	g.Expect(cap(tail.bytes)).To(BeNumerically("<", 1000))
}
