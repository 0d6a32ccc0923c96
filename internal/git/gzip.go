package git

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math/bits"
)

// gzipWriter compresses in the format of gzip (RFC 1952, RFC 1951). It exists because the output of the standard library's compressor
// differs between versions of Go, and the digest of a checkout must not change with the toolchain: running operations name it, and
// after an upgrade of the controller the same commit must give the same digest. So the format is simple and this file's own business:
// matches within 32 KiB that are found by one hash table, and the fixed Huffman codes.
//
// Nothing in here may change what is written. A test knows its digest.
type gzipWriter struct {
	out      io.Writer
	bits     bitWriter
	checksum uint32
	size     uint32
	// data is the history that matches may point to, followed from start by what is to be written.
	data  []byte
	start int
	table [1 << hashBits]int32
	begun bool
}

const (
	windowSize  = 32 << 10
	blockSize   = 32 << 10
	hashBits    = 14
	minMatch    = 4
	maxMatch    = 258
	endOfBlock  = 256
	firstLength = 257
	fixedBlock  = 1
)

func newGzipWriter(out io.Writer) *gzipWriter {
	g := &gzipWriter{out: out, data: make([]byte, 0, windowSize+blockSize)}
	for n := range g.table {
		g.table[n] = -1
	}
	return g
}

func (g *gzipWriter) Write(p []byte) (int, error) {
	written := len(p)
	g.checksum = crc32.Update(g.checksum, crc32.IEEETable, p)
	g.size += uint32(len(p)) //nolint:gosec // modulo 2³², as the format has it
	for len(p) > 0 {
		n := min(len(p), g.start+blockSize-len(g.data))
		g.data = append(g.data, p[:n]...)
		p = p[n:]
		if len(g.data) == g.start+blockSize {
			if err := g.block(); err != nil {
				return 0, err
			}
		}
	}
	return written, nil
}

// Close writes what is left and the checksum.
func (g *gzipWriter) Close() error {
	if len(g.data) > g.start {
		if err := g.block(); err != nil {
			return err
		}
	}
	g.header()
	g.bits.write(1|fixedBlock<<1, 3) // the last block, without content
	g.symbol(endOfBlock)
	g.bits.align()
	g.bits.buffer = binary.LittleEndian.AppendUint32(g.bits.buffer, g.checksum)
	g.bits.buffer = binary.LittleEndian.AppendUint32(g.bits.buffer, g.size)
	_, err := g.out.Write(g.bits.buffer)
	return err
}

func (g *gzipWriter) header() {
	if !g.begun {
		// Compressed with deflate, no flags, no time, an unknown system.
		g.bits.buffer = append(g.bits.buffer, 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff)
		g.begun = true
	}
}

// block writes what is in data from start on, compressed or, when that is not shorter, as it is.
func (g *gzipWriter) block() error {
	g.header()
	before := g.bits
	before.buffer = append([]byte(nil), g.bits.buffer...)
	g.bits.write(fixedBlock<<1, 3)
	g.compress()
	g.symbol(endOfBlock)
	if length := len(g.data) - g.start; len(g.bits.buffer)-len(before.buffer) > length {
		g.bits = before
		g.bits.write(0, 3)
		g.bits.align()
		g.bits.buffer = binary.LittleEndian.AppendUint16(g.bits.buffer, uint16(length))  //nolint:gosec // at most blockSize
		g.bits.buffer = binary.LittleEndian.AppendUint16(g.bits.buffer, ^uint16(length)) //nolint:gosec // as above
		g.bits.buffer = append(g.bits.buffer, g.data[g.start:]...)
	}
	if _, err := g.out.Write(g.bits.buffer); err != nil {
		return err
	}
	g.bits.buffer = g.bits.buffer[:0]
	g.slide()
	return nil
}

// slide keeps the last windowSize bytes as history.
func (g *gzipWriter) slide() {
	gone := max(0, len(g.data)-windowSize)
	g.data = g.data[:copy(g.data, g.data[gone:])]
	g.start = len(g.data)
	for n, position := range g.table {
		g.table[n] = max(position-int32(gone), -1) //nolint:gosec // at most blockSize
	}
}

// compress writes literals and matches. After many positions without a match it looks at fewer, as what follows is likely to be
// incompressible, too.
func (g *gzipWriter) compress() {
	misses := 0
	for at := g.start; at < len(g.data); {
		length, distance := g.match(at)
		if length == 0 {
			for step := 1 + misses>>6; step > 0 && at < len(g.data); step-- {
				g.symbol(uint32(g.data[at]))
				at++
			}
			misses++
			continue
		}
		misses = 0
		g.pair(length, distance)
		at += length
	}
}

// match looks for the same bytes earlier in data.
func (g *gzipWriter) match(at int) (length, distance int) {
	if at+minMatch > len(g.data) {
		return 0, 0
	}
	value := binary.LittleEndian.Uint32(g.data[at:])
	hash := value * 0x9E3779B1 >> (32 - hashBits)
	candidate := int(g.table[hash])
	g.table[hash] = int32(at) //nolint:gosec // at most windowSize + blockSize
	if candidate < 0 || at-candidate > windowSize || binary.LittleEndian.Uint32(g.data[candidate:]) != value {
		return 0, 0
	}
	length = minMatch
	for length < maxMatch && at+length < len(g.data) && g.data[candidate+length] == g.data[at+length] {
		length++
	}
	return length, at - candidate
}

// symbol writes a literal or the code of a length with the fixed Huffman code (RFC 1951, 3.2.6).
func (g *gzipWriter) symbol(symbol uint32) {
	code, width := uint32(0), 0
	switch {
	case symbol < 144:
		code, width = 0x30+symbol, 8
	case symbol < 256:
		code, width = 0x190+symbol-144, 9
	case symbol < 280:
		code, width = symbol-256, 7
	default:
		code, width = 0xc0+symbol-280, 8
	}
	g.bits.write(bits.Reverse32(code)>>(32-width), width)
}

// pair writes a match (RFC 1951, 3.2.5).
func (g *gzipWriter) pair(length, distance int) {
	switch value := uint32(length - 3); { //nolint:gosec // at most 255
	case length == maxMatch:
		g.symbol(285)
	case value < 8:
		g.symbol(firstLength + value)
	default:
		extra := bits.Len32(value) - 3
		// The three highest bits of the value are in the code.
		g.symbol(firstLength + 4*uint32(extra) + value>>extra) //nolint:gosec // at most 5
		g.bits.write(value&(1<<extra-1), extra)
	}
	value := uint32(distance - 1) //nolint:gosec // from 0 to windowSize-1
	if value < 4 {
		g.bits.write(bits.Reverse32(value)>>27, 5)
		return
	}
	extra := bits.Len32(value) - 2
	code := uint32(2*extra) + value>>extra //nolint:gosec // at most 29
	g.bits.write(bits.Reverse32(code)>>27, 5)
	g.bits.write(value&(1<<extra-1), extra)
}

// bitWriter collects bits, the lowest first.
type bitWriter struct {
	buffer []byte
	held   uint64
	count  int
}

func (b *bitWriter) write(value uint32, width int) {
	b.held |= uint64(value) << b.count
	b.count += width
	for b.count >= 8 {
		b.buffer = append(b.buffer, byte(b.held))
		b.held >>= 8
		b.count -= 8
	}
}

// align fills the last byte with zeros.
func (b *bitWriter) align() {
	if b.count > 0 {
		b.buffer = append(b.buffer, byte(b.held))
		b.held, b.count = 0, 0
	}
}
