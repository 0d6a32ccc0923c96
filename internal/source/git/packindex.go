package git

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// packLimits bound the content of a packfile.
type packLimits struct {
	// objects is the largest number of objects, objectSize the largest uncompressed size of one object, and totalSize that of all objects
	// together, in bytes.
	objects    int
	objectSize int64
	totalSize  int64
}

// countObjects reads the number of objects from the header of the packfile.
func countObjects(file io.ReaderAt) (int64, error) {
	var header [packHeader]byte
	if _, err := file.ReadAt(header[:], 0); err != nil || string(header[:4]) != "PACK" {
		return 0, fmt.Errorf("%w: no header", errPack)
	}
	if version := binary.BigEndian.Uint32(header[4:]); version != 2 && version != 3 {
		return 0, fmt.Errorf("%w: version %d", errPack, version)
	}
	return int64(binary.BigEndian.Uint32(header[8:])), nil
}

// openPack indexes the file, which must hold a self-contained packfile, and checks the hash of every object. The caller must hold the
// memory for its objects, see memory, and closes the file.
func openPack(ctx context.Context, file *os.File, limits packLimits, budget *memory) (*pack, error) {
	count, err := countObjects(file)
	switch {
	case err != nil:
		return nil, err
	case count > int64(limits.objects):
		return nil, fmt.Errorf("%w: more than %d objects", errPackTooLarge, limits.objects)
	}
	p := &pack{scanner: packfile.NewScanner(file), objects: make([]packedObject, 0, count), maxMade: maxMadeFactor * limits.totalSize}
	i := &indexer{pack: p, limits: limits, first: slices.Repeat([]int32{-1}, int(count)), siblings: slices.Repeat([]int32{-1}, int(count))}
	if _, err := p.scanner.SeekFromStart(packHeader); err != nil {
		return nil, err
	}
	for range count {
		if err := i.scan(ctx); err != nil {
			return nil, err
		}
	}
	release, err := p.work(ctx, budget)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := i.resolveAll(ctx); err != nil {
		return nil, err
	}
	p.byName = make([]int32, count)
	for n, object := range p.objects {
		p.byName[n] = int32(n)
		if object.kind != plumbing.BlobObject {
			p.largestTree = max(p.largestTree, min(object.size, maxTreeSize))
		}
	}
	slices.SortFunc(p.byName, func(a, b int32) int { return bytes.Compare(p.objects[a].hash[:], p.objects[b].hash[:]) })
	return p, nil
}

// indexer finds the objects of a packfile and their hashes.
type indexer struct {
	*pack
	limits packLimits
	total  int64

	// first has, by the index of an object, the first delta with that object as its base. siblings has, by the index of a delta, the next
	// delta with the same base. -1 is none.
	first, siblings []int32
	// named are the deltas that name their base by its hash; after the scan they are sorted by that hash.
	named []namedDelta
}

// namedDelta is a delta that names its base by a hash. n is the index of the delta, or -1 when adopt has found its base.
type namedDelta struct {
	base plumbing.Hash
	n    int32
}

// scan reads the next object. The object is never inflated beyond the size that its header declares.
func (i *indexer) scan(ctx context.Context) error {
	header, err := i.scanner.NextObjectHeader()
	if err != nil {
		return fmt.Errorf("%w: %w", errPack, err)
	}
	n := int32(len(i.objects)) //nolint:gosec // the number of objects is bounded
	object := packedObject{base: -1, offset: header.Offset, size: header.Length}
	switch header.Type {
	case plumbing.CommitObject, plumbing.TreeObject, plumbing.BlobObject, plumbing.TagObject:
		object.kind = header.Type
	case plumbing.OFSDeltaObject:
		base, found := slices.BinarySearchFunc(i.objects, header.OffsetReference, func(o packedObject, at int64) int { return cmp.Compare(o.offset, at) })
		if !found {
			return fmt.Errorf("%w: a delta without a base", errPack)
		}
		i.siblings[n], i.first[base] = i.first[base], n
	case plumbing.REFDeltaObject:
		i.named = append(i.named, namedDelta{header.Reference, n})
	default:
		return fmt.Errorf("%w: an object of an unknown type", errPack)
	}
	if err := i.account(header.Length); err != nil {
		return err
	}
	hasher, start := plumbing.NewHasher(header.Type, header.Length), prefix{}
	switch written, _, err := i.scanner.NextObject(io.MultiWriter(contextWriter{ctx, hasher}, &start)); {
	case err != nil:
		return fmt.Errorf("%w: %w", errPack, err)
	case written != header.Length:
		return fmt.Errorf("%w: an object is smaller than it says", errPack)
	}
	if object.kind == plumbing.InvalidObject {
		if object.size, err = i.deltaSize(start); err != nil {
			return err
		}
	} else {
		object.hash = hasher.Sum()
	}
	i.objects = append(i.objects, object)
	return nil
}

// prefix keeps the start of an object, where a delta has its sizes.
type prefix []byte

func (f *prefix) Write(p []byte) (int, error) {
	*f = append(*f, p[:min(len(p), deltaHeader-len(*f))]...)
	return len(p), nil
}

// account checks the size of an object, and adds it to the total.
func (i *indexer) account(size int64) error {
	if size > i.limits.objectSize {
		return fmt.Errorf("%w: an object of more than %d bytes", errPackTooLarge, i.limits.objectSize)
	}
	if i.total += size; i.total > i.limits.totalSize {
		return fmt.Errorf("%w: objects of more than %d bytes together", errPackTooLarge, i.limits.totalSize)
	}
	return nil
}

// deltaSize returns the size of the object that the delta makes, and checks it.
func (i *indexer) deltaSize(start []byte) (int64, error) {
	base, size, err := deltaSizes(bytes.NewReader(start))
	switch {
	case err != nil:
		return 0, err
	case base > maxInMemory || size > maxInMemory:
		return 0, fmt.Errorf("%w: an object that is stored as a delta, or its base, has more than %d bytes", errPackTooLarge, maxInMemory)
	}
	i.largestDelta = max(i.largestDelta, base, size)
	i.deltas += base + size
	return size, i.account(size)
}

// resolveAll finds the types and hashes of the objects that are stored as deltas, from their bases.
func (i *indexer) resolveAll(ctx context.Context) error {
	slices.SortFunc(i.named, func(a, b namedDelta) int { return bytes.Compare(a.base[:], b.base[:]) })
	for n, object := range i.objects {
		if object.kind == plumbing.InvalidObject || object.base >= 0 {
			continue
		}
		i.linkNamedDeltas(int32(n))
		if err := i.resolve(ctx, int32(n), nil, 0); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(i.objects, func(o packedObject) bool { return o.kind == plumbing.InvalidObject }) {
		return fmt.Errorf("%w: a delta whose base is not there", errPack)
	}
	return nil
}

// resolve resolves the deltas of the n-th object, and the deltas of those in turn. It goes depth first, and has no more in memory than one
// base and one object on the way. A base that it returns to is in the cache of bases, or is read again.
func (i *indexer) resolve(ctx context.Context, n int32, content []byte, depth int) error {
	for child := i.first[n]; child >= 0; child = i.siblings[child] {
		if depth == maxDeltaDepth {
			return fmt.Errorf("%w: a chain of more than %d deltas", errPack, maxDeltaDepth)
		}
		var err error
		if i.objects[n].isBase = true; content == nil {
			if content, err = i.read(ctx, n); err != nil {
				return err
			}
		}
		object := &i.objects[child]
		object.base, object.kind = n, i.objects[n].kind
		made, err := i.apply(ctx, content, child)
		if err != nil {
			return err
		}
		object.hash = plumbing.ComputeHash(object.kind, made)
		if i.linkNamedDeltas(child); i.first[child] < 0 {
			continue
		}
		if i.siblings[child] >= 0 {
			i.bases.Add(n, content, int64(len(content)))
		}
		content = nil
		if err := i.resolve(ctx, child, made, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// linkNamedDeltas finds the deltas that name the n-th object as their base by its hash. If several objects have the same hash, the first
// one gets all these deltas.
func (i *indexer) linkNamedDeltas(n int32) {
	hash := i.objects[n].hash
	at, _ := slices.BinarySearchFunc(i.named, hash, func(d namedDelta, hash plumbing.Hash) int { return bytes.Compare(d.base[:], hash[:]) })
	for ; at < len(i.named) && i.named[at].base == hash && i.named[at].n >= 0; at++ {
		child := i.named[at].n
		i.siblings[child], i.first[n] = i.first[n], child
		i.named[at].n = -1
	}
}
