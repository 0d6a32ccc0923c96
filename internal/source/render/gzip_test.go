package render

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
)

// The digests are those of compress/gzip at level 0 in Go 1.26, with which the first releases were built.
func TestStoredBytesNeverChange(t *testing.T) {
	for size, want := range map[int]string{
		0: "30e6fa98fb48c2b1", 1: "de82b1aef39f34ba", 10: "4e045f9b825067c4", 65534: "5171c9435f255f15",
		65535: "347277e2cc5c5ca7", 65536: "c8999cd1ae7d9930", 131070: "2171b4b3fcd2cf37", 200_000: "a8ab871c55f6db6d",
	} {
		g := NewWithT(t)
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 31)
		}
		stored := storeGzip(data)
		g.Expect(digest.FromBytes(stored).Encoded()).To(HavePrefix(want), "%d bytes", size)
		reader, err := gzip.NewReader(bytes.NewReader(stored))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(io.ReadAll(reader)).To(Equal(data))
	}
}
