// Package file reads files that may be anything, and writes files that are there as a whole or not at all.
package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// TemporarySuffix ends the name of a file that is being written.
const TemporarySuffix = ".new"

var (
	// ErrTooLarge says that there is more than the limit.
	ErrTooLarge = errors.New("too large")
	// ErrNotRegular says that there is something that is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
)

// boundedReader fails when its source has more than the remaining bytes.
type boundedReader struct {
	source    io.Reader
	remaining int64
	exceeded  error
}

// NewReader returns a reader that fails with the error when the source has more bytes than the limit.
func NewReader(source io.Reader, limit int64, exceeded error) io.Reader {
	return &boundedReader{source, limit, exceeded}
}

// Read implements io.Reader.
func (r *boundedReader) Read(p []byte) (int, error) {
	// One byte more than remains, to tell a source that ends exactly at the limit from one that goes on.
	if int64(len(p))-1 > r.remaining {
		p = p[:r.remaining+1]
	}
	n, err := r.source.Read(p)
	if int64(n) > r.remaining {
		return int(r.remaining), r.exceeded
	}
	r.remaining -= int64(n)
	return n, err
}

// ReadAll reads at most limit bytes, and fails with ErrTooLarge if there are more.
func ReadAll(source io.Reader, limit int64) ([]byte, error) {
	return io.ReadAll(NewReader(source, limit, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)))
}

// Read reads a regular file of at most limit bytes. It never waits for the writer of a named pipe.
func Read(path string, limit int64) ([]byte, error) {
	return read(os.OpenFile, path, limit)
}

// ReadIn is Read for a file in a directory that somebody else may write: no symbolic link leads out of the root.
func ReadIn(root *os.Root, name string, limit int64) ([]byte, error) {
	return read(root.OpenFile, name, limit)
}

func read(open func(name string, flag int, mode fs.FileMode) (*os.File, error), path string, limit int64) ([]byte, error) {
	file, err := open(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	}
	content, err := ReadAll(file, limit)
	if errors.Is(err, ErrTooLarge) {
		err = &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return content, err
}

// Write replaces the file in one step, so that a crash leaves the old content or the new one. Only the owner may read it. There must be
// one writer at a time.
func Write(path string, content []byte) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	return WriteIn(root, filepath.Base(path), content, false)
}

// WriteIn is Write for a file in a directory that somebody else may write: no symbolic link leads out of the root. With durable it
// returns when the file is on the disk.
func WriteIn(root *os.Root, name string, content []byte, durable bool) error {
	temporary := name + TemporarySuffix
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil && durable {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	switch {
	case err != nil:
		return errors.Join(err, root.Remove(temporary))
	case durable:
		return sync(root, filepath.Dir(name))
	}
	return nil
}

// sync makes the entries of the directory survive a crash of the machine.
func sync(root *os.Root, directory string) error {
	opened, err := root.Open(directory)
	if err != nil {
		return err
	}
	defer opened.Close()
	return opened.Sync()
}

// WithoutPath returns the error of an operation on a file without its path: where a program keeps its files tells a user nothing.
func WithoutPath(err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
