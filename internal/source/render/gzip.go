package render

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// gzipHeader is that of a file without name, time and system.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}

// storeGzip returns the data, of less than 4 GiB, in the gzip format (RFC 1952) without compression, as stored blocks (RFC 1951, 3.2.4). No
// library is used: what compress/gzip writes changes with the version of Go, even without compression (the last block did with 1.27), and
// klauspost/compress writes something else again. Another byte would change the digest of every Program, and update every Stack with one.
func storeGzip(data []byte) []byte {
	out := append([]byte{}, gzipHeader...)
	block := func(last byte, content []byte) {
		size := uint16(len(content)) //nolint:gosec // at most 65,535
		out = append(out, last)
		out = binary.LittleEndian.AppendUint16(out, size)
		out = binary.LittleEndian.AppendUint16(out, ^size)
		out = append(out, content...)
	}
	for rest := data; len(rest) > 0; {
		size := min(len(rest), math.MaxUint16)
		block(0, rest[:size])
		rest = rest[size:]
	}
	block(1, nil)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(data))
	return binary.LittleEndian.AppendUint32(out, uint32(len(data))) //nolint:gosec // see above
}
