package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// layer is a list of files. Written twice it gives the same bytes, as long as the files that it copies stay the same.
type layer []entry

// entry is a file, a directory or a symbolic link of a layer.
type entry struct {
	path string // without a leading slash
	mode int64  // permissions
	kind byte   // a type of archive/tar
	// owner is the user and the group.
	owner int
	// content is the content of a small file.
	content string
	// source is the file of this machine that is copied, when not empty.
	source string
	// target is where a link leads to.
	target string
}

func directory(path string, mode int64, owner int) entry {
	return entry{path: path + "/", mode: mode, kind: tar.TypeDir, owner: owner}
}

func textFile(path, content string) entry {
	return entry{path: path, mode: 0o644, kind: tar.TypeReg, content: content}
}

// program is an executable file, copied from this machine.
func program(path, source string, owner int) entry {
	return entry{path: path, mode: 0o755, kind: tar.TypeReg, source: source, owner: owner}
}

func link(path, target string) entry {
	return entry{path: path, mode: 0o777, kind: tar.TypeSymlink, target: target}
}

// users is what makes names of users and groups known: root, and one user with a group of the same name and number.
func users(name string, id int, home string) layer {
	return layer{
		directory("etc", 0o755, 0),
		textFile("etc/passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\n%s:x:%d:%d:%[1]s:%[4]s:/bin/sh\n", name, id, id, home)),
		textFile("etc/group", fmt.Sprintf("root:x:0:\n%s:x:%d:\n", name, id)),
	}
}

// temporary is the directory that everybody may write to.
func temporary() entry {
	return directory("tmp", 0o1777, 0)
}

// copied is what is below the directory of this machine, to be put below to. All files are programs.
func copied(to, from string, owner int) (layer, error) {
	var result layer
	err := filepath.WalkDir(from, func(source string, found fs.DirEntry, err error) error {
		if err != nil || source == from {
			return err
		}
		relative, err := filepath.Rel(from, source)
		if err != nil {
			return err
		}
		if found.IsDir() {
			result = append(result, directory(path.Join(to, relative), 0o755, owner))
			return nil
		}
		result = append(result, program(path.Join(to, relative), source, owner))
		return nil
	})
	return result, err
}

// write encodes the layer as a tarball. The entries have no time, so that the digest depends on nothing else but them.
func (l layer) write(w io.Writer) error {
	tarball := tar.NewWriter(w)
	for _, e := range l {
		if err := e.write(tarball); err != nil {
			return fmt.Errorf("add %s to a layer: %w", path.Clean(e.path), err)
		}
	}
	return tarball.Close()
}

func (e entry) write(tarball *tar.Writer) error {
	header := &tar.Header{
		Name: e.path, Mode: e.mode, Typeflag: e.kind, Linkname: e.target, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)),
	}
	if e.source == "" {
		if err := tarball.WriteHeader(header); err != nil {
			return err
		}
		_, err := io.WriteString(tarball, e.content)
		return err
	}
	file, err := os.Open(e.source)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	header.Size = info.Size()
	if err := tarball.WriteHeader(header); err != nil {
		return errors.Join(err, file.Close())
	}
	_, err = io.Copy(tarball, file)
	return errors.Join(err, file.Close())
}
