package prebuilt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"

	"github.com/opencontainers/go-digest"
)

// go-containerregistry reads images as well, but has to be compiled before the first byte can come: it and what it imports are as many
// packages as all else that this program is made of.

// maxManifest is the most that is read of an index or a manifest, in bytes.
const maxManifest = 4 << 20

// maxLayers is how many layers of an image are looked into.
const maxLayers = 64

var challengeParameter = regexp.MustCompile(`(\w+)="([^"]*)"`)

// manifest is an index of an image, or a manifest, of Docker or of OCI: what is needed of them.
type manifest struct {
	Manifests []descriptor `json:"manifests"`
	Layers    []descriptor `json:"layers"`
}

// descriptor refers to a manifest or a layer.
type descriptor struct {
	Digest   digest.Digest `json:"digest"`
	Size     int64         `json:"size"`
	Platform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// manifestTypes are what a registry may answer with.
var manifestTypes = []string{
	"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
	"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
}

// repository reads from a repository of images.
type repository struct {
	*fetcher
	base   *url.URL // https://HOST/v2/NAME
	header http.Header
}

func newRepository(f *fetcher, from *url.URL) *repository {
	base := &url.URL{Scheme: "https", Host: from.Host, Path: "/v2" + from.Path}
	return &repository{fetcher: f, base: f.at(base), header: http.Header{"Accept": manifestTypes}}
}

// layers returns the layers of the image for the platform, the topmost first: programs are usually there. The digest is that of an index or
// of a manifest. Everything that is read is verified.
func (r *repository) layers(ctx context.Context, wanted digest.Digest, system, architecture string) ([]descriptor, error) {
	top, err := r.manifest(ctx, wanted)
	if err != nil {
		return nil, err
	}
	if len(top.Manifests) > 0 {
		index := slices.IndexFunc(top.Manifests, func(d descriptor) bool { return d.Platform.OS == system && d.Platform.Architecture == architecture })
		if index < 0 {
			return nil, fmt.Errorf("the image is not made for %s/%s", system, architecture)
		}
		if top, err = r.manifest(ctx, top.Manifests[index].Digest); err != nil {
			return nil, err
		}
	}
	if len(top.Layers) == 0 || len(top.Layers) > maxLayers {
		return nil, fmt.Errorf("the image has %d layers; it must have between 1 and %d", len(top.Layers), maxLayers)
	}
	slices.Reverse(top.Layers)
	return top.Layers, nil
}

func (r *repository) manifest(ctx context.Context, wanted digest.Digest) (*manifest, error) {
	if err := wanted.Validate(); err != nil {
		return nil, fmt.Errorf("digest of a manifest: %w", err)
	}
	found := &manifest{}
	address := r.base.JoinPath("manifests", wanted.String())
	content, err := r.getContent(ctx, address, r.header)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == http.StatusUnauthorized && r.header.Get("Authorization") == "" {
		token, tokenErr := r.authorization(ctx, refused.challenge)
		if tokenErr != nil {
			return nil, tokenErr
		}
		r.header.Set("Authorization", token.Get("Authorization"))
		content, err = r.getContent(ctx, address, r.header)
	}
	if err != nil {
		return nil, err
	}
	if got := wanted.Algorithm().FromBytes(content); got != wanted {
		return nil, &digestError{address: address.Redacted(), got: got, wanted: wanted}
	}
	if err := json.Unmarshal(content, found); err != nil {
		return nil, fmt.Errorf("read %s: %w", address.Redacted(), err)
	}
	return found, nil
}

// authorized returns the header of a request for a layer.
func (r *repository) authorized() http.Header {
	if token := r.header.Get("Authorization"); token != "" {
		return http.Header{"Authorization": {token}}
	}
	return nil
}

// blob returns the address of a layer.
func (r *repository) blob(d descriptor) *url.URL { return r.base.JoinPath("blobs", d.Digest.String()) }

// getContent returns the content of a small file.
func (f *fetcher) getContent(ctx context.Context, address *url.URL, header http.Header) (content []byte, err error) {
	err = f.get(ctx, address, header, func(body io.Reader, _ int64) error {
		content, err = io.ReadAll(io.LimitReader(body, maxManifest+1))
		if err == nil && len(content) > maxManifest {
			err = fmt.Errorf("%s is larger than %d bytes", address.Redacted(), maxManifest)
		}
		return err
	})
	return content, err
}

func (f *fetcher) getJSON(ctx context.Context, address *url.URL, header http.Header, into any) error {
	content, err := f.getContent(ctx, address, header)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}
