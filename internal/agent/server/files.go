package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// readFile reads a plain file of at most max bytes. It neither leaves the root nor waits for a named pipe.
func readFile(root *os.Root, name string, max int64) ([]byte, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a plain file", name)
	}
	content, err := io.ReadAll(io.LimitReader(file, max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > max {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, max)
	}
	return content, nil
}

// temporarySuffix is that of a file that is being written.
const temporarySuffix = ".new"

// writeFile replaces the file in one step, readable by nobody else. durable waits until it is on the disk.
func writeFile(root *os.Root, name string, content []byte, durable bool) error {
	temporary := name + temporarySuffix
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
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	if err := root.Rename(temporary, name); err != nil {
		return err
	}
	if durable {
		return syncDirectory(root, path.Dir(name))
	}
	return nil
}

// syncDirectory makes the entries of the directory survive a crash of the machine.
func syncDirectory(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// removeTree removes the file or directory with all that is in it, also directories that nobody may write to: Go's module
// cache is made of them.
func removeTree(root *os.Root, name string) error {
	err := root.RemoveAll(name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	opened := fs.WalkDir(root.FS(), name, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			return root.Chmod(path, 0o700)
		}
		return err
	})
	return errors.Join(opened, root.RemoveAll(name))
}
