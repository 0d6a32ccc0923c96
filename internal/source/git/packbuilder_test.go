package git_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
)

// packBuilder writes a packfile. Its objects are hardly compressed, so that it is fast.
type packBuilder struct {
	content bytes.Buffer
	count   uint32
	zip     *zlib.Writer
}

func (b *packBuilder) write(kind byte, size int, prefix, content []byte) (offset int) {
	offset = 12 + b.content.Len()
	header := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		header[len(header)-1] |= 0x80
		header = append(header, byte(size&0x7f))
	}
	b.content.Write(header)
	b.content.Write(prefix)
	if b.zip == nil {
		b.zip, _ = zlib.NewWriterLevel(nil, zlib.BestSpeed)
	}
	b.zip.Reset(&b.content)
	_, _ = b.zip.Write(content)
	_ = b.zip.Close()
	b.count++
	return offset
}

// object adds an object and returns its name.
func (b *packBuilder) object(kind byte, content []byte) []byte {
	b.write(kind, len(content), nil, content)
	name := map[byte]string{1: "commit", 2: "tree", 3: "blob"}[kind]
	sum := sha1.Sum(append(fmt.Appendf(nil, "%s %d\x00", name, len(content)), content...))
	return sum[:]
}

// commit adds a commit of the tree, and returns its SHA and the packfile.
func (b *packBuilder) commit(tree []byte, message string) (sha string, pack []byte) {
	commit := fmt.Appendf(nil, "tree %x\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\n%s\n", tree, message)
	sha = fmt.Sprintf("%x", b.object(1, commit))
	pack = binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), b.count)
	pack = append(pack, b.content.Bytes()...)
	sum := sha1.Sum(pack)
	return sha, append(pack, sum[:]...)
}
