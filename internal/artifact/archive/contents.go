package archive

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"
)

// File is one file of an archive.
type File struct {
	// Name is clean, relative and slash-separated.
	Name string
	// Sum is the SHA-256 of the content and of whether the file is executable: the two things of it that are unpacked.
	Sum [sha256.Size]byte
}

// Contents reads the archive to its end and calls found for every file that Unpack would write, in the order of the archive. A
// file that comes twice is replaced by the later one. It stops with the error of found; its other errors are those of Check.
func Contents(ctx context.Context, r io.Reader, limits Limits, found func(File) error) error {
	return walk(ctx, r, limits, contents{found})
}

// contents is the target of Contents.
type contents struct {
	found func(File) error
}

func (contents) makeDirectory(string) error { return nil }

func (c contents) createFile(name string, executable bool) (io.WriteCloser, error) {
	sum := sha256.New()
	mode := []byte{0}
	if executable {
		mode[0] = 1
	}
	_, _ = sum.Write(mode)
	return &summedFile{Hash: sum, name: name, found: c.found}, nil
}

// summedFile sums what is written, and tells the result when it is closed.
type summedFile struct {
	hash.Hash
	name  string
	found func(File) error
}

func (f *summedFile) Close() error {
	file := File{Name: f.name}
	f.Sum(file.Sum[:0])
	return f.found(file)
}
