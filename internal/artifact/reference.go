package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/opencontainers/go-digest"
	_ "github.com/opencontainers/go-digest/blake3" // one of the algorithms that source-controller may be told to use
)

// Reference is what a source publishes about its artifact.
type Reference struct {
	// URL is where the tarball is served, over http or https.
	URL string
	// Digest is "algorithm:hex" of the tarball. Algorithms are sha256, sha384, sha512 and blake3.
	Digest string
	// Revision is what a human calls the artifact, for example "main@sha1:…".
	Revision string
	// Size of the tarball in bytes, nil when the source does not tell.
	Size *int64
	// Maker makes the tarball where nobody serves it; URL is not used then, and Digest may be empty: it is known when the
	// tarball was made. Nil for an artifact that is downloaded.
	Maker Maker
}

// Maker makes the tarball of an artifact on this machine: from a git commit, or from a Program. The same Key always stands for
// the same content.
type Maker interface {
	// Key identifies what is made, and from where. It has no credentials in clear: requests with one key share one making.
	Key() string
	// Make returns the tarball. It is bounded in time and size, reproducible byte by byte, and ends with ctx. Its errors are shown
	// to users.
	Make(ctx context.Context) (io.ReadCloser, error)
}

// location is a Reference that was found to be well-formed.
type location struct {
	key flightKey
	// digest is the wanted one. It is empty for an artifact that is made and whose digest is not known yet.
	digest digest.Digest
	// maker is nil for an artifact that is downloaded.
	maker Maker
	// url is what is requested.
	url *url.URL
	// shown is the published URL as it may appear in a message.
	shown string
}

// locate checks what can be checked without a request.
func (s *Store) locate(ref Reference) (location, error) {
	if ref.Maker != nil {
		return locateMaker(ref)
	}
	parsed, shown, err := parseURL(ref.URL)
	if err != nil {
		return location{}, &FetchError{Kind: Unusable, URL: shown, err: err}
	}
	parsedDigest, err := parseDigest(ref.Digest)
	if err != nil {
		return location{}, &FetchError{Kind: Unusable, URL: shown, err: err}
	}
	if ref.Size != nil && *ref.Size > s.options.Limits.MaxDownloadSize {
		return location{}, &FetchError{Kind: TooLarge, URL: shown,
			err: fmt.Errorf("its size of %d bytes exceeds the limit of %d bytes", *ref.Size, s.options.Limits.MaxDownloadSize)}
	}
	if s.options.HostOverride != "" {
		parsed.Host = s.options.HostOverride
	}
	key := flightKey{digest: parsedDigest, url: parsed.String()}
	return location{key: key, digest: parsedDigest, url: parsed, shown: shown}, nil
}

// locateMaker checks the reference of an artifact that is made here. Its key has no digest: what is made for one key is the
// same for all who ask, and each compares it with what it expects.
func locateMaker(ref Reference) (location, error) {
	from := location{maker: ref.Maker, key: flightKey{maker: keyOf(ref.Maker)}}
	if ref.Digest == "" {
		return from, nil
	}
	parsed, err := parseDigest(ref.Digest)
	if err == nil && parsed.Algorithm() != digest.Canonical {
		err = fmt.Errorf("digest %s: what is made here has digests of type %s", parsed, digest.Canonical)
	}
	if err != nil {
		return location{}, &FetchError{Kind: Unusable, made: true, err: err}
	}
	from.digest = parsed
	return from, nil
}

// parseURL returns the URL and how it may be shown. Its errors do not quote the URL.
func parseURL(raw string) (parsed *url.URL, shown string, err error) {
	const unknown = "with an invalid URL"
	parsed, err = url.Parse(raw)
	if err != nil {
		return nil, unknown, errors.New("the URL cannot be parsed")
	}
	if parsed.Host == "" {
		return nil, unknown, errors.New("the URL has no host")
	}
	shown = (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path, RawPath: parsed.RawPath}).String()
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, shown, fmt.Errorf("the scheme %q is neither http nor https", parsed.Scheme)
	}
	return parsed, shown, nil
}

func parseDigest(value string) (digest.Digest, error) {
	parsed, err := digest.Parse(value)
	if err != nil {
		const most = 160 // longer than any digest
		return "", fmt.Errorf("digest %.*q: %w", most, value, err)
	}
	return parsed, nil
}
