package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Unpack writes the content of the archive to dir, which must be an empty directory. Nothing is written outside of it.
//
// Files get the mode 0600, or 0700 when anybody may execute them, and directories 0700: the modes that source-controller
// packs, so that the result does not depend on who packed. Owners and times are not taken over; symbolic links are left
// out, and the names of the first 1000 of them are returned, clean, relative and slash-separated. A name that occurs twice stands for its last occurrence.
//
// Errors wrap ErrTooLarge or ErrInvalid when the archive is at fault; other errors come from r, ctx or the file system.
// After an error dir has a part of the content, and the caller is expected to remove it.
func Unpack(ctx context.Context, r io.Reader, dir string, limits Limits) (leftOut []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("unpack archive: %w", err)
	}
	defer root.Close()
	if err := requireEmpty(root); err != nil {
		return nil, err
	}
	return walk(ctx, r, limits, func(e entry) error { return e.write(root) })
}

func requireEmpty(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("unpack archive: %w", err)
	}
	defer dir.Close()
	switch _, err := dir.Readdirnames(1); {
	case err == nil:
		return fmt.Errorf("unpack archive: directory %s is not empty", root.Name())
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("unpack archive: %w", err)
	}
}

// write makes the file or directory below the root. The name was checked before; os.Root protects other directories even if that check had
// a gap.
func (e entry) write(root *os.Root) error {
	if e.isDirectory {
		return root.MkdirAll(e.name, 0o700)
	}
	mode := fs.FileMode(0o600)
	if e.executable {
		mode = 0o700
	}
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	file, err := root.OpenFile(e.name, flags, mode)
	if errors.Is(err, fs.ErrExist) {
		if err := root.Remove(e.name); err != nil {
			return err
		}
		file, err = root.OpenFile(e.name, flags, mode)
	}
	if err != nil {
		return err
	}
	return errors.Join(e.copyTo(file), file.Close())
}
