package git

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	pool "github.com/go-git/go-git/v5/utils/sync"

	"github.com/stack-controller/stack-controller/internal/bytecache"
)

const (
	// maxInMemory bounds in bytes an object that is stored as a delta, or that is the base of one. Such objects have to be in memory; all
	// others are streamed. Git itself stores no deltas of objects that are larger than 512 MiB.
	maxInMemory = 32 << 20

	// maxDeltaDepth is the longest chain of deltas, which is git's own limit.
	maxDeltaDepth = 4095

	// baseCacheSize bounds in bytes the cache of bases.
	baseCacheSize = 32 << 20

	// maxMadeFactor bounds how many bytes of objects are made while a pack is read, as a multiple of the limit for the bytes of all its
	// objects. An object is made again each time it is read, and so are its bases when they are no longer in the cache. A hostile pack
	// makes that happen for each of its objects.
	maxMadeFactor = 4

	// treeFactor is the memory that a tree takes while it is read, as a multiple of its size.
	treeFactor = 4

	// packHeader is the size of the header of a packfile in bytes, deltaHeader the largest size of the two numbers at the start of a delta.
	packHeader  = 12
	deltaHeader = 2 * binary.MaxVarintLen64
)

var (
	errPack         = &knownError{Unreachable, "the server's packfile is damaged"}
	errDelta        = fmt.Errorf("%w: a delta contradicts itself", errPack)
	errPackTooLarge = &knownError{TooLarge, "too large"}
	errNoObject     = &knownError{Unreachable, "the server did not send an object that belongs to the commit"}
)

// pack is a packfile on disk with an index in memory, see objectMemory. go-git's scanner reads the file. go-git's parser is not used: at
// some time it has every object in memory, so one large file would take the whole process down.
type pack struct {
	scanner *packfile.Scanner
	objects []packedObject // by offset
	byName  []int32        // by hash; indices of objects
	bases   *bytecache.Cache[int32, []byte]

	// largestDelta is the size of the largest object that is stored as a delta or is the base of one, largestTree the size of the largest
	// tree, commit or tag, and deltas the total size of the objects that are stored as deltas and of their bases.
	largestDelta, largestTree, deltas int64

	// made is how many bytes of objects were made so far, maxMade how many may be made: see maxMadeFactor.
	made, maxMade int64
}

// packedObject is the place of an object in the pack, and the hash, size and type that it has after deltas are applied.
type packedObject struct {
	hash   plumbing.Hash
	base   int32 // index of the base of a delta, -1 for none
	offset int64
	size   int64
	kind   plumbing.ObjectType
	isBase bool
}

// workingMemory returns how much memory it takes to read any object, in bytes.
func (p *pack) workingMemory() int64 {
	return max(2*p.largestDelta, treeFactor*p.largestTree) + min(p.deltas, baseCacheSize) + workingBuffers
}

// work waits for the memory that it takes to read objects. The caller calls release after that.
func (p *pack) work(ctx context.Context, budget *memory) (release func(), err error) {
	done, err := budget.work(ctx, p.workingMemory())
	return func() {
		p.dropBases()
		done()
	}, err
}

// dropBases drops the bases that were kept to read further objects.
func (p *pack) dropBases() { p.bases = nil }

// find returns the index of the object.
func (p *pack) find(hash plumbing.Hash) (int32, bool) {
	n, found := slices.BinarySearchFunc(p.byName, hash, func(n int32, hash plumbing.Hash) int {
		return bytes.Compare(p.objects[n].hash[:], hash[:])
	})
	if !found {
		return 0, false
	}
	return p.byName[n], true
}

// get returns the object, which must be of that type and must not be larger than the limit.
func (p *pack) get(ctx context.Context, hash plumbing.Hash, kind plumbing.ObjectType, limit int64) ([]byte, error) {
	n, found := p.find(hash)
	switch {
	case !found || p.objects[n].kind != kind:
		return nil, fmt.Errorf("%w: %s %s", errNoObject, kind, hash)
	case p.objects[n].size > limit:
		return nil, fmt.Errorf("%w: %s %s has more than %d bytes", errPackTooLarge, kind, hash, limit)
	}
	return p.read(ctx, n)
}

// open streams the object. The stream is valid until another object is read.
func (p *pack) open(ctx context.Context, n int32) (io.ReadCloser, error) {
	if p.objects[n].base < 0 {
		return p.inflate(n)
	}
	content, err := p.read(ctx, n)
	return io.NopCloser(bytes.NewReader(content)), err
}

// inflate streams what is stored for the n-th object: its content or a delta.
func (p *pack) inflate(n int32) (io.ReadCloser, error) {
	if _, err := p.scanner.SeekObjectHeader(p.objects[n].offset); err != nil {
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	stored, err := p.scanner.ReadObject()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	return stored, nil
}

// read returns the whole object, with all deltas of its chain applied. The caller must have working memory, see work.
func (p *pack) read(ctx context.Context, n int32) ([]byte, error) {
	if p.bases == nil {
		p.bases = bytecache.New[int32, []byte](baseCacheSize)
	}
	var chain []int32
	content, found := p.bases.Get(n)
	for !found {
		chain = append(chain, n)
		if n = p.objects[n].base; n < 0 {
			break
		}
		content, found = p.bases.Get(n)
	}
	for _, n := range slices.Backward(chain) {
		var err error
		if content, err = p.apply(ctx, content, n); err != nil {
			return nil, err
		}
		if p.objects[n].isBase {
			p.bases.Add(n, content, int64(len(content)))
		}
	}
	return content, nil
}

// apply returns the n-th object, made of its base if it is stored as a delta.
func (p *pack) apply(ctx context.Context, base []byte, n int32) ([]byte, error) {
	object := p.objects[n]
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case object.size > maxInMemory:
		return nil, fmt.Errorf("%w: the base of a delta has more than %d bytes", errPackTooLarge, maxInMemory)
	}
	if p.made += object.size; p.made > p.maxMade {
		return nil, fmt.Errorf("%w: it takes too much work to read", errPackTooLarge)
	}
	stored, err := p.inflate(n)
	if err != nil {
		return nil, err
	}
	defer stored.Close()
	content := make([]byte, object.size)
	if object.base >= 0 {
		buffered := pool.GetBufioReader(stored)
		defer pool.PutBufioReader(buffered)
		err = applyDelta(content, base, buffered)
	} else {
		_, err = io.ReadFull(stored, content)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	return content, nil
}

// applyDelta makes the object from its base and the delta (gitformat-pack, Deltified representation). The delta is read as a stream.
// go-git's PatchDelta would have the delta in memory, too, and the object up to three times.
func applyDelta(object, base []byte, delta *bufio.Reader) error {
	baseSize, size, err := deltaSizes(delta)
	if err != nil || baseSize != int64(len(base)) || size != int64(len(object)) {
		return errDelta
	}
	for {
		instruction, err := delta.ReadByte()
		switch {
		case errors.Is(err, io.EOF) && len(object) == 0:
			return nil
		case err != nil:
			return err
		case instruction == 0:
			return errDelta
		}
		length := int64(instruction) // the number of bytes that follow
		var copied []byte
		if instruction&0x80 != 0 {
			var offset int64
			if offset, length, err = copyInstruction(instruction, delta); err != nil {
				return err
			}
			if offset+length > int64(len(base)) {
				return errDelta
			}
			copied = base[offset : offset+length]
		}
		if length > int64(len(object)) {
			return errDelta
		}
		if copied != nil {
			copy(object, copied)
		} else if _, err := io.ReadFull(delta, object[:length]); err != nil {
			return err
		}
		object = object[length:]
	}
}

// copyInstruction reads the offset and the length of the bytes that are copied from the base. The bits of the instruction say which bytes
// of both numbers follow.
func copyInstruction(instruction byte, delta io.ByteReader) (offset, length int64, err error) {
	var numbers uint64
	for bit := range 7 {
		if instruction&(1<<bit) == 0 {
			continue
		}
		b, err := delta.ReadByte()
		if err != nil {
			return 0, 0, err
		}
		numbers |= uint64(b) << (8 * bit)
	}
	if length = int64(numbers >> 32); length == 0 {
		length = 0x10000
	}
	return int64(numbers & 0xffffffff), length, nil
}

// deltaSizes reads the sizes of the base and of the object, which a delta begins with.
func deltaSizes(delta io.ByteReader) (base, object int64, err error) {
	var sizes [2]uint64
	for n := range sizes {
		if sizes[n], err = binary.ReadUvarint(delta); err != nil || sizes[n] > 1<<62 {
			return 0, 0, errDelta
		}
	}
	return int64(sizes[0]), int64(sizes[1]), nil //nolint:gosec // at most 1<<62
}
