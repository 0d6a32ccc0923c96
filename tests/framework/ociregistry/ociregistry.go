// Package ociregistry runs a real OCI registry in the network of a control plane's servers (the registry of crane, over plain HTTP and
// without a password), and pushes artifacts to it in the format of the flux command.
package ociregistry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// name is the name of the tool, of the server's directory and of its log.
const name = "crane"

// Registry is a running registry.
type Registry struct {
	// Address is the host and port.
	Address string

	client http.Client
}

// Start starts a registry. It ends at the latest with the control plane.
func Start(ctx context.Context, cp *controlplane.ControlPlane) (*Registry, error) {
	crane, err := tools.Path(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	blobs := filepath.Join(cp.Dir, name, "blobs")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the registry: %w", err)
	}
	r := &Registry{Address: address, client: http.Client{Timeout: requestTimeout, Transport: &http.Transport{DialContext: cp.Dial}}}
	_, err = cp.StartServer(ctx, controlplane.Server{
		Name:  name,
		Path:  crane,
		Args:  []string{"registry", "serve", "--address=" + address, "--disk=" + blobs},
		Ready: cp.AnswersOK("http://" + address + "/v2/"),
	})
	return r, err
}

// URL returns the URL for an OCIRepository.
func (r *Registry) URL(repository string) string { return "oci://" + r.Address + "/" + repository }

// Media types of what the flux command pushes.
const (
	ConfigType  = "application/vnd.cncf.flux.config.v1+json"
	ContentType = "application/vnd.cncf.flux.content.v1.tar+gzip"

	manifestType = "application/vnd.oci.image.manifest.v1+json"
)

// Annotations that record what an artifact was made from.
const (
	SourceAnnotation   = "org.opencontainers.image.source"
	RevisionAnnotation = "org.opencontainers.image.revision"
	CreatedAnnotation  = "org.opencontainers.image.created"
)

const (
	// requestTimeout bounds one request.
	requestTimeout = 30 * time.Second
	// maxAnswer bounds how much of a refusal an error shows, in bytes.
	maxAnswer = 512
)

// Artifact is an artifact to push.
type Artifact struct {
	Layers      []Layer
	Annotations map[string]string
}

// Layer is one part of an artifact.
type Layer struct {
	// MediaType is ContentType for a layer as the flux command pushes it.
	MediaType string
	Content   []byte
}

// descriptor refers to a blob.
type descriptor struct {
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	Size      int           `json:"size"`
}

// Push uploads the artifact, points the tag to it, and returns the digest of its manifest.
func (r *Registry) Push(ctx context.Context, repository, tag string, artifact Artifact) (digest.Digest, error) {
	config, err := r.pushBlob(ctx, repository, Layer{ConfigType, []byte("{}")})
	if err != nil {
		return "", err
	}
	layers := make([]descriptor, 0, len(artifact.Layers))
	for _, layer := range artifact.Layers {
		pushed, err := r.pushBlob(ctx, repository, layer)
		if err != nil {
			return "", err
		}
		layers = append(layers, pushed)
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers, "annotations": artifact.Annotations,
	})
	if err != nil {
		return "", fmt.Errorf("encode the manifest of %s: %w", repository, err)
	}
	target := fmt.Sprintf("http://%s/v2/%s/manifests/%s", r.Address, repository, tag)
	if _, err := r.send(ctx, http.MethodPut, target, manifestType, manifest); err != nil {
		return "", err
	}
	return digest.FromBytes(manifest), nil
}

func (r *Registry) pushBlob(ctx context.Context, repository string, layer Layer) (descriptor, error) {
	blob := descriptor{layer.MediaType, digest.FromBytes(layer.Content), len(layer.Content)}
	upload, err := r.send(ctx, http.MethodPost, fmt.Sprintf("http://%s/v2/%s/blobs/uploads/", r.Address, repository), "", nil)
	if err != nil {
		return blob, err
	}
	query := upload.Query()
	query.Set("digest", blob.Digest.String())
	upload.RawQuery = query.Encode()
	_, err = r.send(ctx, http.MethodPut, upload.String(), "application/octet-stream", layer.Content)
	return blob, err
}

// send sends a request and returns the location in the response, or nil if there is none.
func (r *Registry) send(ctx context.Context, method, target, mediaType string, content []byte) (*url.URL, error) {
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("push to the registry: %w", err)
	}
	if mediaType != "" {
		request.Header.Set("Content-Type", mediaType)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("push to the registry: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		answer, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return nil, fmt.Errorf("push to the registry: %s %s: %s: %s", method, request.URL.Path, response.Status, answer)
	}
	location, err := response.Location()
	if errors.Is(err, http.ErrNoLocation) {
		return nil, nil
	}
	return location, err
}
