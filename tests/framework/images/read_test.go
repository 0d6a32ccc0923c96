package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"testing"

	. "github.com/onsi/gomega"
)

// storedFile is a file in a tarball.
type storedFile struct {
	tar.Header
	content []byte
}

// readTar reads a tarball.
func readTar(t *testing.T, tarball []byte) map[string]storedFile {
	t.Helper()
	g := NewWithT(t)
	files := map[string]storedFile{}
	for reader := tar.NewReader(bytes.NewReader(tarball)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		g.Expect(err).NotTo(HaveOccurred())
		content := make([]byte, header.Size)
		_, err = io.ReadFull(reader, content)
		g.Expect(err).NotTo(HaveOccurred())
		files[path.Join("/", header.Name)] = storedFile{Header: *header, content: content}
	}
}

// uncompressed returns the tarball of a layer that may be compressed.
func uncompressed(t *testing.T, layer []byte) []byte {
	t.Helper()
	if !bytes.HasPrefix(layer, []byte{0x1f, 0x8b}) {
		return layer
	}
	g := NewWithT(t)
	reader, err := gzip.NewReader(bytes.NewReader(layer))
	g.Expect(err).NotTo(HaveOccurred())
	content, err := io.ReadAll(reader)
	g.Expect(err).NotTo(HaveOccurred())
	return content
}

// storedImage is an image as read from a tarball or a registry.
type storedImage struct {
	references []string
	config     imageConfig
	// layers are the tarballs of the layers, the lowest first.
	layers [][]byte
}

// files returns the files that a container sees.
func (i storedImage) files(t *testing.T) map[string]storedFile {
	t.Helper()
	all := map[string]storedFile{}
	for _, layer := range i.layers {
		maps.Copy(all, readTar(t, layer))
	}
	return all
}

// readImage reads a tarball in the format of "docker save", and checks the digest of every layer.
func readImage(t *testing.T, path string) storedImage {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	files := readTar(t, content)
	var manifests []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	g.Expect(json.Unmarshal(files["/manifest.json"].content, &manifests)).To(Succeed())
	g.Expect(manifests).To(HaveLen(1))
	image := storedImage{references: manifests[0].RepoTags}
	for _, name := range manifests[0].Layers {
		image.layers = append(image.layers, uncompressed(t, files["/"+name].content))
	}
	image.readConfig(t, files["/"+manifests[0].Config].content)
	return image
}

// readConfig reads the configuration, and checks the digests of the layers against it.
func (i *storedImage) readConfig(t *testing.T, encoded []byte) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(json.Unmarshal(encoded, &i.config)).To(Succeed())
	g.Expect(i.config.RootFS.DiffIDs).To(HaveLen(len(i.layers)))
	for n, layer := range i.layers {
		g.Expect(digestPrefix + hashOf(layer)).To(Equal(i.config.RootFS.DiffIDs[n]))
	}
}

// readPlatforms reads the image of each platform below the digest of an index; get returns a blob.
func readPlatforms(t *testing.T, digest string, get func(digest string) []byte) map[string]storedImage {
	t.Helper()
	g := NewWithT(t)
	var list index
	g.Expect(json.Unmarshal(get(digest), &list)).To(Succeed())
	images := map[string]storedImage{}
	for _, described := range list.Manifests {
		var document manifest
		g.Expect(json.Unmarshal(get(described.Digest), &document)).To(Succeed())
		var image storedImage
		for _, layer := range document.Layers {
			image.layers = append(image.layers, uncompressed(t, get(layer.Digest)))
		}
		image.readConfig(t, get(document.Config.Digest))
		images[described.Platform.Architecture] = image
	}
	return images
}
