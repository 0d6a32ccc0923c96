package git

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
)

// errClosed is for a Checkout that is used after Close.
var errClosed = errors.New("the checkout is closed")

// Pack writes the work tree as a gzip-compressed tarball, as the archive package accepts it: regular files and directories by name,
// without git's own directory and symbolic links, owned by nobody in particular, from the beginning of time, with the modes 0644 and
// 0755. Submodules that were not asked for are empty directories.
//
// The same tree gives the same bytes, on every machine and with every version of this program and of Go: the digest of what Pack
// writes identifies the content.
//
// Errors come from w or from the disk.
func (c *Checkout) Pack(w io.Writer) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.packs == nil {
		return errClosed
	}
	zip := newGzipWriter(w)
	archive := tar.NewWriter(zip)
	for _, e := range c.entries {
		if err := writeEntry(archive, e); err != nil {
			return fmt.Errorf("pack %s: %w", shownPath(e.path), err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("pack commit %s: %w", c.Commit.SHA, err)
	}
	return zip.Close()
}

func writeEntry(archive *tar.Writer, e entry) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: 0o644, Size: e.size}
	switch e.kind {
	case directory:
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, e.path+"/", 0o755
	case executable:
		header.Mode = 0o755
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if e.kind == directory {
		return nil
	}
	content, err := e.pack.open(e.object)
	if err != nil {
		return err
	}
	written, err := io.Copy(archive, content)
	if err == nil && written != e.size {
		err = errPack
	}
	return err
}
