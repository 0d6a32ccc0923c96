package images

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// registryTimeout bounds how long a request to the registry may take to arrive.
	registryTimeout = time.Minute
	// registryLimit bounds what is pushed at once, in bytes.
	registryLimit = 512 << 20
)

// registry is a registry on loopback with one repository for everything: ko takes its base from a registry and from nowhere
// else, and a release is pushed to one.
type registry struct {
	address string
	base    string // the digest of the base image
	server  *http.Server

	mu    sync.Mutex
	blobs map[string]blob   // by digest: documents too
	tags  map[string]string // "repository:tag" to digest
}

// serve starts a registry that has the base in it; Close ends it.
func serve(b base) (*registry, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for requests to the registry: %w", err)
	}
	r := &registry{
		address: listener.Addr().String(), base: b.digest, blobs: map[string]blob{}, tags: map[string]string{},
	}
	for digest, content := range b.blobs {
		r.blobs[digest] = content
	}
	r.server = &http.Server{Handler: r, ReadTimeout: registryTimeout}
	go func() {
		// It ends with an error in any case, by Close; what goes wrong before that, ko tells.
		_ = r.server.Serve(listener)
	}()
	return r, nil
}

func (r *registry) Close() error { return r.server.Close() }

// baseReference names the base image with its digest.
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

// cutLast is strings.Cut around the last separator: a repository may be called "manifests".
func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

// store keeps a document, or a blob: its bytes arrive with a PATCH, and a PUT without a body says its digest; or with the PUT.
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
		// A client that goes away has no use for the rest.
		_, _ = w.Write(found.content)
	}
}
