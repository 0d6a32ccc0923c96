package artifact

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
)

func TestMemoryOfWhatWasMadeIsBounded(t *testing.T) {
	g := NewWithT(t)
	memory := newMade(3)
	keys := make([]makerKey, 4)
	for i := range keys {
		copy(keys[i][:], fmt.Sprint(i))
		memory.digests.Add(keys[i], digest.FromString(fmt.Sprint(i)))
	}
	g.Expect(memory.digests.Len()).To(Equal(3))
	g.Expect(memory.digest(keys[0])).To(BeEmpty())
	g.Expect(memory.digest(keys[3])).To(Equal(digest.FromString("3")))
}
