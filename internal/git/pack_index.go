package git

import (
	"bufio"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
)

// indexer finds the objects of a packfile and their hashes.
type indexer struct {
	ctx    context.Context
	pack   *pack
	limits packLimits
	total  int64

	source *offsetReader
	zip    io.ReadCloser
	buffer []byte

	// waiting are the objects that differ from one that is named by its hash, by that hash.
	waiting map[plumbing.Hash][]int32
	// children are the objects that differ from the one of that index.
	children map[int32][]int32
}

// scan reads the file once from start to end. It inflates every object, never beyond the size that its header declares.
func (i *indexer) scan() error {
	if _, err := i.pack.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	i.source = &offsetReader{source: bufio.NewReaderSize(i.pack.file, 256<<10)}
	i.buffer = make([]byte, 64<<10)
	i.children = map[int32][]int32{}
	var header [12]byte
	if _, err := io.ReadFull(i.source, header[:]); err != nil || string(header[:4]) != "PACK" {
		return fmt.Errorf("%w: no header", errPack)
	}
	if version := binary.BigEndian.Uint32(header[4:]); version != 2 && version != 3 {
		return fmt.Errorf("%w: version %d", errPack, version)
	}
	count := int64(binary.BigEndian.Uint32(header[8:]))
	if count > int64(i.limits.objects) {
		return fmt.Errorf("%w: more than %d objects", errPackTooLarge, i.limits.objects)
	}
	for n := range count {
		if err := i.ctx.Err(); err != nil {
			return err
		}
		if err := i.object(int32(n)); err != nil { //nolint:gosec // the number of objects is bounded
			return err
		}
	}
	return nil
}

// object reads the n-th object.
func (i *indexer) object(n int32) error {
	object := packedObject{header: i.source.offset, base: -1}
	kind, size, err := i.objectHeader()
	if err != nil {
		return err
	}
	object.stored = size
	switch kind {
	case plumbing.CommitObject, plumbing.TreeObject, plumbing.BlobObject, plumbing.TagObject:
		object.kind, object.size = kind, size
	case plumbing.OFSDeltaObject:
		distance, err := i.distance()
		if err != nil {
			return err
		}
		base, found := slices.BinarySearchFunc(i.pack.objects, object.header-distance, func(o packedObject, offset int64) int {
			return int(min(max(o.header-offset, -1), 1))
		})
		if !found {
			return fmt.Errorf("%w: a difference from no object", errPack)
		}
		i.children[int32(base)] = append(i.children[int32(base)], n) //nolint:gosec // the number of objects is bounded
		object.base = int32(base)                                    //nolint:gosec // as above
	case plumbing.REFDeltaObject:
		var base plumbing.Hash
		if _, err := io.ReadFull(i.source, base[:]); err != nil {
			return fmt.Errorf("%w: %w", errPack, err)
		}
		i.waiting[base] = append(i.waiting[base], n)
	default:
		return fmt.Errorf("%w: an object of an unknown type", errPack)
	}
	object.data = i.source.offset
	if err := i.content(&object); err != nil {
		return err
	}
	i.pack.objects = append(i.pack.objects, object)
	return nil
}

// objectHeader reads type and size.
func (i *indexer) objectHeader() (kind plumbing.ObjectType, size int64, err error) {
	b, err := i.source.ReadByte()
	if err != nil {
		return 0, 0, fmt.Errorf("%w: it ends too early", errPack)
	}
	kind = plumbing.ObjectType((b >> 4) & 7)
	size = int64(b & 15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = i.source.ReadByte(); err != nil || shift > 55 {
			return 0, 0, fmt.Errorf("%w: the size of an object", errPack)
		}
		size |= int64(b&0x7f) << shift
	}
	return kind, size, i.account(size)
}

// distance reads how far before this object its base is.
func (i *indexer) distance() (int64, error) {
	var distance int64
	for n := 0; ; n++ {
		b, err := i.source.ReadByte()
		if err != nil || n > 8 {
			return 0, fmt.Errorf("%w: the place of a base", errPack)
		}
		distance = distance<<7 | int64(b&0x7f)
		if b&0x80 == 0 {
			return distance, nil
		}
		distance++
	}
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

// content inflates the object, for its hash or for the size of what the difference makes.
func (i *indexer) content(object *packedObject) error {
	if i.zip == nil {
		zip, err := zlib.NewReader(i.source)
		if err != nil {
			return fmt.Errorf("%w: %w", errPack, err)
		}
		i.zip = zip
	} else if err := i.zip.(zlib.Resetter).Reset(i.source, nil); err != nil {
		return fmt.Errorf("%w: %w", errPack, err)
	}
	isDelta := object.kind == plumbing.InvalidObject
	hasher := plumbing.NewHasher(object.kind, object.size)
	var start []byte
	var read int64
	for {
		n, err := i.zip.Read(i.buffer)
		if read += int64(n); read > object.stored {
			return fmt.Errorf("%w: an object is larger than it says", errPack)
		}
		if isDelta {
			start = append(start, i.buffer[:min(n, 20-min(20, len(start)))]...)
		} else if _, err := hasher.Write(i.buffer[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errPack, err)
		}
		if err := i.ctx.Err(); err != nil {
			return err
		}
	}
	if read != object.stored {
		return fmt.Errorf("%w: an object is smaller than it says", errPack)
	}
	if !isDelta {
		object.hash = hasher.Sum()
		return nil
	}
	size, err := deltaSize(start)
	if err != nil {
		return err
	}
	if size > maxInMemory {
		return fmt.Errorf("%w: an object that is stored as a difference has more than %d bytes", errPackTooLarge, maxInMemory)
	}
	object.size = size
	return i.account(size)
}

// step is an object with its content, from which others differ. Without content it is read again.
type step struct {
	n       int32
	depth   int
	content []byte
}

// resolve finds the hashes of the objects that are stored as differences, from those they differ from.
func (i *indexer) resolve() error {
	for n := range i.pack.objects {
		if i.pack.objects[n].kind != plumbing.InvalidObject {
			if err := i.resolveFrom(int32(n)); err != nil { //nolint:gosec // the number of objects is bounded
				return err
			}
		}
	}
	for n := range i.pack.objects {
		if i.pack.objects[n].kind == plumbing.InvalidObject {
			return fmt.Errorf("%w: a difference from an object that is not there", errPack)
		}
	}
	return nil
}

func (i *indexer) resolveFrom(root int32) error {
	steps := []step{{n: root}}
	pending := int64(0)
	for len(steps) > 0 {
		last := steps[len(steps)-1]
		steps = steps[:len(steps)-1]
		pending -= int64(len(last.content))
		children := i.take(last.n)
		if len(children) == 0 {
			continue
		}
		if last.depth == maxDeltaDepth {
			return fmt.Errorf("%w: a chain of more than %d differences", errPack, maxDeltaDepth)
		}
		if last.content == nil {
			var err error
			if last.content, err = i.pack.read(last.n); err != nil {
				return err
			}
		}
		for _, child := range children {
			content, err := i.resolveOne(last, child)
			if err != nil {
				return err
			}
			next := step{n: child, depth: last.depth + 1}
			if pending+int64(len(content)) <= maxPending {
				next.content = content
				pending += int64(len(content))
			}
			steps = append(steps, next)
		}
	}
	return nil
}

// take gives the objects that differ from the n-th, each once.
func (i *indexer) take(n int32) []int32 {
	object := &i.pack.objects[n]
	children := append(i.children[n], i.waiting[object.hash]...)
	delete(i.children, n)
	delete(i.waiting, object.hash)
	object.hasChildren = len(children) > 0
	return children
}

func (i *indexer) resolveOne(from step, child int32) ([]byte, error) {
	if err := i.ctx.Err(); err != nil {
		return nil, err
	}
	delta, err := i.pack.readStored(child)
	if err != nil {
		return nil, err
	}
	object := &i.pack.objects[child]
	content, err := applyDelta(from.content, delta, object.size)
	if err != nil {
		return nil, err
	}
	object.base = from.n
	object.kind = i.pack.objects[from.n].kind
	object.hash = plumbing.ComputeHash(object.kind, content)
	if len(i.children[child]) == 0 && len(i.waiting[object.hash]) == 0 {
		return nil, nil // nothing differs from it
	}
	return content, nil
}

// offsetReader knows how far it has read. It is an io.ByteReader, so that decompression takes no byte too many.
type offsetReader struct {
	source *bufio.Reader
	offset int64
}

func (o *offsetReader) Read(p []byte) (int, error) {
	n, err := o.source.Read(p)
	o.offset += int64(n)
	return n, err
}

func (o *offsetReader) ReadByte() (byte, error) {
	b, err := o.source.ReadByte()
	if err == nil {
		o.offset++
	}
	return b, err
}
