// Package file reads untrusted files within bounds, and writes files completely or not at all.
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
	// ErrTooLarge means that the content has more bytes than the limit.
	ErrTooLarge = errors.New("too large")
	// ErrNotRegular means that the path is not a regular file.
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
	// It reads one byte more than remains, to distinguish a source that ends exactly at the limit from one that goes on.
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

// ReadIn is like Read, for a file in a directory that others may write to: it follows no symbolic link out of the root.
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

// Write replaces the file in one step, so that a crash leaves the old content or the new one. Only the owner may read it. Only one writer
// may write the file at a time.
func Write(path string, content []byte) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	return WriteIn(root, filepath.Base(path), content, false)
}

// WriteIn is like Write, for a file in a directory that others may write to: it follows no symbolic link out of the root. With durable it
// returns after the file is synced to disk.
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

// WithoutPath returns the error of a file operation without the path, because the paths of the program's own files do not help a user.
func WithoutPath(err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
