package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// contents is what an image consists of.
type contents struct {
	references []string
	layers     []layer
	config     containerConfig
}

// containerConfig is what a container of the image runs unless the pod says otherwise. The names are those of the format.
type containerConfig struct {
	User       string   `json:",omitempty"`
	Env        []string `json:",omitempty"`
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	WorkingDir string   `json:",omitempty"`
}

// imageConfig is the document that the digest of an image's content is over.
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

// digestPrefix begins a digest in every document of an image.
const digestPrefix = "sha256:"

// measuredLayer is a layer of which the digest and size are known.
type measuredLayer struct {
	layer
	digest string
	size   int64
}

// measure reads the layers and returns them with the image's configuration, encoded.
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

// archive is an image on its way into a tarball in the format of "docker save". Its layers are not compressed: they are
// imported from a local disk.
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

// key names the content: the configuration has the digests of the layers in it.
func (a archive) key() string {
	return hashOf(a.config, []byte(strings.Join(a.references, " ")))
}

// write makes the tarball.
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

// hashOf is the SHA-256 of the parts in hexadecimal.
func hashOf(parts ...[]byte) string {
	hash := sha256.New()
	for _, part := range parts {
		hash.Write(part)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// byteCounter counts what is written to it.
type byteCounter int64

func (b *byteCounter) Write(p []byte) (int, error) {
	*b += byteCounter(len(p))
	return len(p), nil
}
