package images

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// productUser is who the product's images run as. A number, so that the kubelet can tell that it is not root.
const productUser = "65532:65532"

// certificates is where Debian, and the images, have the certificate authorities.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// Media types of the documents of an image.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor names a blob in the documents of an image.
type descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    string    `json:"digest"`
	Size      int64     `json:"size"`
	Platform  *platform `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// manifest is the document of an image for one platform.
type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// index is the document of an image for several platforms.
type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// blob is a document or a layer as a registry stores it.
type blob struct {
	mediaType string
	content   []byte
}

// base is an image with nothing to run in it, for several platforms: what ko's default base is for a release.
type base struct {
	digest string // of the index
	blobs  map[string]blob
}

// newBase makes the base for the architectures.
func newBase(architectures ...string) (base, error) {
	system := append(users("nonroot", 65532, "/home/nonroot"), temporary(),
		directory("home", 0o755, 0), directory("home/nonroot", 0o700, 65532))
	switch authorities, err := os.ReadFile("/" + certificates); {
	case err == nil:
		system = append(system, directory("etc/ssl", 0o755, 0), directory("etc/ssl/certs", 0o755, 0), textFile(certificates, string(authorities)))
	case !errors.Is(err, fs.ErrNotExist):
		return base{}, fmt.Errorf("read the certificate authorities of the base image: %w", err)
	}
	c := contents{
		layers: []layer{system},
		config: containerConfig{User: "65532", Env: []string{"PATH=" + shellPath, "SSL_CERT_FILE=/" + certificates},
			WorkingDir: "/home/nonroot"},
	}
	result := base{blobs: map[string]blob{}}
	list := index{SchemaVersion: 2, MediaType: indexType}
	for _, architecture := range architectures {
		described, err := result.addImage(c, architecture)
		if err != nil {
			return base{}, err
		}
		list.Manifests = append(list.Manifests, described)
	}
	described, err := result.addDocument(indexType, list)
	result.digest = described.Digest
	return result, err
}

// addImage adds the blobs of the image for one architecture.
func (b base) addImage(c contents, architecture string) (descriptor, error) {
	measured, config, err := c.measure(architecture)
	if err != nil {
		return descriptor{}, err
	}
	document := manifest{SchemaVersion: 2, MediaType: manifestType, Config: b.add(configType, config)}
	for _, l := range measured {
		var compressed bytes.Buffer
		writer := gzip.NewWriter(&compressed)
		if err := errors.Join(l.write(writer), writer.Close()); err != nil {
			return descriptor{}, fmt.Errorf("compress a layer of the base image: %w", err)
		}
		document.Layers = append(document.Layers, b.add(layerType, compressed.Bytes()))
	}
	described, err := b.addDocument(manifestType, document)
	described.Platform = &platform{Architecture: architecture, OS: "linux"}
	return described, err
}

func (b base) addDocument(mediaType string, document any) (descriptor, error) {
	encoded, err := json.Marshal(document)
	if err != nil {
		return descriptor{}, fmt.Errorf("encode the base image: %w", err)
	}
	return b.add(mediaType, encoded), nil
}

func (b base) add(mediaType string, content []byte) descriptor {
	digest := digestPrefix + hashOf(content)
	b.blobs[digest] = blob{mediaType: mediaType, content: slices.Clone(content)}
	return descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(content))}
}
