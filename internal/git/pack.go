package git

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

const (
	// maxInMemory bounds in bytes an object that is stored as a difference, or that others differ from: those have to be in
	// memory. Everything else is streamed. Git itself stores no differences of what is larger than 512 MiB.
	maxInMemory = 64 << 20

	// maxPending bounds in bytes what waits in memory while differences are resolved.
	maxPending = 64 << 20

	// maxDeltaDepth is the longest chain of differences, which is git's own limit.
	maxDeltaDepth = 4095

	// baseCacheSize bounds in bytes what is kept of objects that others differ from.
	baseCacheSize = 16 << 20
)

var (
	errPack         = errors.New("the server's packfile is damaged")
	errPackTooLarge = errors.New("too large")
	errNoObject     = errors.New("the server did not send an object that belongs to the commit")
)

// packLimits bound the content of a packfile.
type packLimits struct {
	// objects is the number of objects, objectSize the bytes of one without compression, totalSize the sum of those.
	objects    int
	objectSize int64
	totalSize  int64
}

// pack is a packfile on disk with an index in memory, of about 60 bytes for each object. The library that the rest of this
// package uses would hold every object in memory once while it indexes, so one large file could take the whole process down.
type pack struct {
	file    *os.File
	objects []packedObject // by offset
	byName  []int32        // by hash; indices of objects
	bases   *cache.BufferLRU

	// zip and buffered inflate one object at a time: an object must have been read before the next is opened.
	zip      io.ReadCloser
	buffered *bufio.Reader
}

// packedObject is where an object is.
type packedObject struct {
	hash plumbing.Hash
	// header and data are the offsets of the object and of its compressed content.
	header, data int64
	// stored is the size of what is compressed, size that of the object.
	stored, size int64
	base         int32 // index of what it differs from, -1 for none
	kind         plumbing.ObjectType
	hasChildren  bool
}

// openPack indexes the file, which must hold a self-contained packfile, and checks the hash of every object. The pack owns the file.
func openPack(ctx context.Context, file *os.File, limits packLimits) (*pack, error) {
	p := &pack{file: file, bases: cache.NewBufferLRU(baseCacheSize)}
	i := &indexer{ctx: ctx, pack: p, limits: limits, waiting: map[plumbing.Hash][]int32{}}
	if err := i.scan(); err != nil {
		return nil, err
	}
	if err := i.resolve(); err != nil {
		return nil, err
	}
	p.byName = make([]int32, len(p.objects))
	for n := range p.objects {
		p.byName[n] = int32(n) //nolint:gosec // the number of objects is bounded
	}
	slices.SortFunc(p.byName, func(a, b int32) int { return bytes.Compare(p.objects[a].hash[:], p.objects[b].hash[:]) })
	return p, nil
}

func (p *pack) close() error { return p.file.Close() }

// find gives the index of the object.
func (p *pack) find(hash plumbing.Hash) (int32, bool) {
	n, found := slices.BinarySearchFunc(p.byName, hash, func(n int32, hash plumbing.Hash) int {
		return bytes.Compare(p.objects[n].hash[:], hash[:])
	})
	if !found {
		return 0, false
	}
	return p.byName[n], true
}

// get gives the object, which must be of that type and must not be larger than the limit.
func (p *pack) get(hash plumbing.Hash, kind plumbing.ObjectType, limit int64) ([]byte, error) {
	n, found := p.find(hash)
	switch {
	case !found || p.objects[n].kind != kind:
		return nil, fmt.Errorf("%w: %s %s", errNoObject, kind, hash)
	case p.objects[n].size > limit:
		return nil, fmt.Errorf("%w: %s %s has more than %d bytes", errPackTooLarge, kind, hash, limit)
	}
	return p.read(n)
}

// open streams the object. What it gives is valid until the next object is read.
func (p *pack) open(n int32) (io.Reader, error) {
	if p.objects[n].base >= 0 {
		content, err := p.read(n)
		return bytes.NewReader(content), err
	}
	return p.inflate(n)
}

// read gives the whole object, for which the differences down its chain are applied.
func (p *pack) read(n int32) ([]byte, error) {
	chain := []int32{}
	var content []byte
	for {
		if cached, ok := p.bases.Get(int64(n)); ok {
			content = cached
			break
		}
		chain = append(chain, n)
		if p.objects[n].base < 0 {
			break
		}
		n = p.objects[n].base
	}
	for _, n := range slices.Backward(chain) {
		next, err := p.readStored(n)
		if err != nil {
			return nil, err
		}
		if p.objects[n].base >= 0 {
			if next, err = applyDelta(content, next, p.objects[n].size); err != nil {
				return nil, err
			}
		}
		if p.objects[n].hasChildren {
			p.bases.Put(int64(n), next)
		}
		content = next
	}
	return content, nil
}

// readStored gives what is stored of the object: its content or its difference.
func (p *pack) readStored(n int32) ([]byte, error) {
	if p.objects[n].stored > maxInMemory {
		return nil, fmt.Errorf("%w: an object that is stored as a difference has more than %d bytes", errPackTooLarge, maxInMemory)
	}
	source, err := p.inflate(n)
	if err != nil {
		return nil, err
	}
	content := make([]byte, p.objects[n].stored)
	if _, err := io.ReadFull(source, content); err != nil {
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	return content, nil
}

func (p *pack) inflate(n int32) (io.Reader, error) {
	object := p.objects[n]
	section := io.NewSectionReader(p.file, object.data, 1<<62-object.data)
	var err error
	if p.zip == nil {
		p.buffered = bufio.NewReader(section)
		p.zip, err = zlib.NewReader(p.buffered)
	} else {
		p.buffered.Reset(section)
		err = p.zip.(zlib.Resetter).Reset(p.buffered, nil)
	}
	if err != nil {
		p.zip = nil
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	return io.LimitReader(p.zip, object.stored), nil
}

// applyDelta makes the object of that size from its base and the difference.
func applyDelta(base, delta []byte, size int64) ([]byte, error) {
	content, err := packfile.PatchDelta(base, delta)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	if int64(len(content)) != size {
		return nil, fmt.Errorf("%w: a difference has another size than it says", errPack)
	}
	return content, nil
}

// deltaSize is the size of the object that a difference makes, which its first bytes tell.
func deltaSize(start []byte) (int64, error) {
	source := bytes.NewReader(start)
	if _, err := binary.ReadUvarint(source); err != nil {
		return 0, errPack
	}
	size, err := binary.ReadUvarint(source)
	if err != nil || size > 1<<62 {
		return 0, errPack
	}
	return int64(size), nil
}
