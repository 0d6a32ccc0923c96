package images

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// productUser is the user of the product's images. It is a number, so that the kubelet can check that it is not root.
const productUser = "65532:65532"

// certificates is the path of the certificate authorities, in Debian and in the images.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// Media types of the documents of an image.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor refers to a blob in the documents of an image.
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

// base is an image without a program, for several platforms. It replaces ko's default base image, which a release uses.
type base struct {
	digest string // of the index
	blobs  map[string]blob
}

// newBase creates the base image for the architectures.
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

// addImage adds the blobs of the image for one architecture and returns the descriptor of its manifest.
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

const (
	// registryTimeout bounds the time to read a request to the registry.
	registryTimeout = time.Minute
	// registryLimit bounds the size of one push, in bytes.
	registryLimit = 512 << 20
)

// registry is a registry on loopback, with one store of blobs for all repositories. ko takes its base image only from a registry, and a
// release is pushed to one.
type registry struct {
	address string
	base    string // the digest of the base image
	server  *http.Server

	mu    sync.Mutex
	blobs map[string]blob   // by digest; includes documents
	tags  map[string]string // "repository:tag" to digest
}

// serve starts a registry that contains the base image; Close stops it.
func serve(b base) (*registry, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for requests to the registry: %w", err)
	}
	r := &registry{
		address: listener.Addr().String(), base: b.digest, blobs: map[string]blob{}, tags: map[string]string{},
	}
	maps.Copy(r.blobs, b.blobs)
	r.server = &http.Server{Handler: r, ReadTimeout: registryTimeout}
	go func() {
		// Serve always returns an error, at the latest after Close. ko reports what goes wrong before that.
		_ = r.server.Serve(listener)
	}()
	return r, nil
}

func (r *registry) Close() error { return r.server.Close() }

// baseReference returns the reference of the base image, with its digest.
func (r *registry) baseReference() string { return r.address + "/base@" + r.base }

// ServeHTTP answers the part of the distribution protocol that ko uses.
func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	requested := strings.TrimPrefix(request.URL.Path, "/v2/")
	repository, manifest, isManifest := cutLast(requested, "/manifests/")
	if strings.Contains(requested, "/blobs/") {
		repository, manifest, isManifest = "", "", false
	}
	switch {
	case requested == "":
	case request.Method == http.MethodPost && strings.HasSuffix(requested, "/blobs/uploads/"):
		w.Header().Set("Location", request.URL.Path+"upload")
		w.WriteHeader(http.StatusAccepted)
	case request.Method == http.MethodPatch, request.Method == http.MethodPut:
		if err := r.store(w, request, repository, manifest); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	case isManifest:
		digest, ok := r.tags[repository+":"+manifest]
		if !ok {
			digest = manifest
		}
		r.send(w, request, digest)
	default:
		r.send(w, request, path.Base(requested))
	}
}

// cutLast works like strings.Cut, but uses the last separator: a repository may be called "manifests".
func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

// store stores a document or a blob. The bytes of a blob arrive with a PATCH, and a PUT without a body follows with the digest; or they
// arrive with the PUT.
func (r *registry) store(w http.ResponseWriter, request *http.Request, repository, manifest string) error {
	content, err := io.ReadAll(http.MaxBytesReader(w, request.Body, registryLimit))
	if err != nil {
		return fmt.Errorf("read what was pushed: %w", err)
	}
	digest := digestPrefix + hashOf(content)
	if wanted := request.URL.Query().Get("digest"); wanted != "" {
		if _, ok := r.blobs[wanted]; !ok && wanted != digest {
			return errors.New("the digest is not that of what was uploaded")
		}
		if wanted == digest {
			r.blobs[digest] = blob{mediaType: request.Header.Get("Content-Type"), content: content}
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	r.blobs[digest] = blob{mediaType: request.Header.Get("Content-Type"), content: content}
	if manifest != "" {
		r.tags[repository+":"+manifest] = digest
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	w.Header().Set("Location", request.URL.Path)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (r *registry) send(w http.ResponseWriter, request *http.Request, digest string) {
	found, ok := r.blobs[digest]
	if !ok {
		http.NotFound(w, request)
		return
	}
	w.Header().Set("Content-Type", found.mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(found.content)))
	w.Header().Set("Docker-Content-Digest", digest)
	if request.Method != http.MethodHead {
		// A client that disconnects does not need the rest.
		_, _ = w.Write(found.content)
	}
}
