package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// layer is a list of files. Writing it twice gives the same bytes, unless the files that it copies change.
type layer []entry

// entry is a file, a directory or a symbolic link of a layer.
type entry struct {
	path string // without a leading slash
	mode int64  // permissions
	kind byte   // a type flag of archive/tar
	// owner is the ID of the user and of the group.
	owner int
	// content is the content of a small file.
	content string
	// source is the path of the file on this machine to copy; empty if content is used.
	source string
	// target is the target of a link.
	target string
}

func directory(path string, mode int64, owner int) entry {
	return entry{path: path + "/", mode: mode, kind: tar.TypeDir, owner: owner}
}

func textFile(path, content string) entry {
	return entry{path: path, mode: 0o644, kind: tar.TypeReg, content: content}
}

// program returns an executable file, copied from this machine.
func program(path, source string, owner int) entry {
	return entry{path: path, mode: 0o755, kind: tar.TypeReg, source: source, owner: owner}
}

func link(path, target string) entry {
	return entry{path: path, mode: 0o777, kind: tar.TypeSymlink, target: target}
}

// users returns the files with the names of users and groups: root, and one user with a group of the same name and ID.
func users(name string, id int, home string) layer {
	return layer{
		directory("etc", 0o755, 0),
		textFile("etc/passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\n%s:x:%d:%d:%[1]s:%[4]s:/bin/sh\n", name, id, id, home)),
		textFile("etc/group", fmt.Sprintf("root:x:0:\n%s:x:%d:\n", name, id)),
	}
}

// temporary returns the directory that every user can write to.
func temporary() entry {
	return directory("tmp", 0o1777, 0)
}

// copied returns everything below the directory from on this machine, to be placed below to. All files are executable.
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

// write encodes the layer as a tarball. The entries have no times, so that the digest depends only on the entries.
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

// contents describes an image.
type contents struct {
	references []string
	layers     []layer
	config     containerConfig
}

// containerConfig is what a container of the image runs unless the pod says otherwise. The field names are those of the image format.
type containerConfig struct {
	User       string   `json:",omitempty"`
	Env        []string `json:",omitempty"`
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	WorkingDir string   `json:",omitempty"`
}

// imageConfig is the document whose digest identifies the content of an image.
type imageConfig struct {
	Architecture string          `json:"architecture"`
	OS           string          `json:"os"`
	Config       containerConfig `json:"config"`
	RootFS       rootFS          `json:"rootfs"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// digestPrefix is the beginning of each digest in the documents of an image.
const digestPrefix = "sha256:"

// measuredLayer is a layer with its digest and size.
type measuredLayer struct {
	layer
	digest string
	size   int64
}

// measure computes the digests of the layers, and returns the layers with the encoded configuration of the image.
func (c contents) measure(architecture string) ([]measuredLayer, []byte, error) {
	config := imageConfig{Architecture: architecture, OS: "linux", Config: c.config, RootFS: rootFS{Type: "layers"}}
	var layers []measuredLayer
	for _, l := range c.layers {
		hash := sha256.New()
		var size byteCounter
		if err := l.write(io.MultiWriter(hash, &size)); err != nil {
			return nil, nil, err
		}
		digest := hex.EncodeToString(hash.Sum(nil))
		layers = append(layers, measuredLayer{layer: l, digest: digest, size: int64(size)})
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digestPrefix+digest)
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the configuration of an image: %w", err)
	}
	return layers, encoded, nil
}

// archive is an image to be written as a tarball in the format of "docker save". Its layers are not compressed, because they are imported
// from a local disk.
type archive struct {
	references []string
	layers     []measuredLayer
	config     []byte
}

func newArchive(c contents) (archive, error) {
	layers, config, err := c.measure(runtime.GOARCH)
	if err != nil {
		return archive{}, err
	}
	return archive{references: c.references, layers: layers, config: config}, nil
}

// key identifies the content: the configuration contains the digests of the layers.
func (a archive) key() string {
	return hashOf(a.config, []byte(strings.Join(a.references, " ")))
}

// write writes the tarball.
func (a archive) write(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create the tarball of the image %s: %w", a.references[0], err)
	}
	defer file.Close()
	if err := a.writeTo(file); err != nil {
		return fmt.Errorf("write the tarball of the image %s: %w", a.references[0], err)
	}
	return file.Close()
}

func (a archive) writeTo(w io.Writer) error {
	manifest := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: hashOf(a.config) + ".json", RepoTags: a.references}
	tarball := tar.NewWriter(w)
	for _, l := range a.layers {
		name := l.digest + ".tar"
		manifest.Layers = append(manifest.Layers, name)
		if err := tarball.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: l.size}); err != nil {
			return err
		}
		if err := l.write(tarball); err != nil {
			return err
		}
	}
	index, err := json.Marshal([]any{manifest})
	if err != nil {
		return err
	}
	for _, document := range []struct {
		name    string
		content []byte
	}{{manifest.Config, a.config}, {"manifest.json", index}} {
		if err := tarball.WriteHeader(&tar.Header{Name: document.name, Mode: 0o644, Size: int64(len(document.content))}); err != nil {
			return err
		}
		if _, err := tarball.Write(document.content); err != nil {
			return err
		}
	}
	return tarball.Close()
}

// hashOf returns the SHA-256 of the parts in hexadecimal.
func hashOf(parts ...[]byte) string {
	hash := sha256.New()
	for _, part := range parts {
		hash.Write(part)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// byteCounter counts the bytes that are written to it.
type byteCounter int64

func (b *byteCounter) Write(p []byte) (int, error) {
	*b += byteCounter(len(p))
	return len(p), nil
}
