package bytecache

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCacheKeepsWhatWasUsedLastWithinItsBytes(t *testing.T) {
	g := NewWithT(t)
	const size = 1000 - entryOverhead
	cache := New[string, int](3000)
	for i, key := range []string{"a", "b", "c"} {
		cache.Add(key, i, size)
	}
	cache.Get("a")
	cache.Add("d", 3, size)
	_, ok := cache.Get("b")
	g.Expect(ok).To(BeFalse(), "the one that was not used")
	value, ok := cache.Get("a")
	g.Expect(ok).To(BeTrue())
	g.Expect(value).To(Equal(0))

	cache.Add("d", 4, size)
	g.Expect(cache.Len()).To(Equal(3), "it takes the place of the earlier one")
	cache.Add("huge", 5, 5000)
	g.Expect(cache.Len()).To(BeZero())
	g.Expect(cache.Size()).To(BeZero())
}
