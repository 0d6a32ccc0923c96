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
	// Source identifies the object that publishes the artifact, with its namespace. Content that was fetched for one source is not returned
	// for another one. With a Maker, the key of the Maker takes the place of Source.
	Source string
	// Namespace is the namespace of the source. The room that the content takes in a Store is counted for this namespace.
	Namespace string
	// Digest is "algorithm:hex" of the tarball. Algorithms are sha256, sha384, sha512 and blake3.
	Digest string
	// Revision is what a human calls the artifact, for example "main@sha1:…".
	Revision string
	// Size of the tarball in bytes, nil when the source does not publish it.
	Size *int64
	// Maker makes a tarball that no server has. Then URL is not used, and Digest may be empty: it is known after the tarball was made.
	// Maker is nil for an artifact that is downloaded.
	Maker Maker
}

// Maker makes the tarball of an artifact on this machine: from a git commit, or from a Program. The same Key always stands for
// the same content.
type Maker interface {
	// Key identifies what is made, and from where. It contains no credentials in clear text. Concurrent requests with the same key share
	// one call of Make.
	Key() string
	// Make writes the tarball, the same bytes each time. It ends with ctx, and with the first write that fails, for example because the
	// tarball exceeds the size limit. Its errors are shown to users.
	Make(ctx context.Context, to io.Writer) error
}

// owner is the SHA-256, in hexadecimal, of the source or of the key of the Maker that the content was fetched for. A hash is small, however
// long their names are.
type owner string

func (r Reference) owner() owner {
	if r.Maker != nil {
		return owner(digest.FromString("maker/" + r.Maker.Key()).Encoded())
	}
	return owner(digest.FromString("source/" + r.Source).Encoded())
}

// flightKey identifies a download, or a call of a Maker. For a Maker it has no digest: all callers with the same key share the result, and
// each compares its digest with the one that it expects.
type flightKey struct {
	digest digest.Digest
	url    string
	owner  owner
}

func (k flightKey) String() string { return fmt.Sprintf("%s %s %s", k.digest, k.url, k.owner) }

// location is a Reference that was checked by locate.
type location struct {
	key flightKey
	// digest is the wanted digest. It is empty for an artifact that is made and whose digest is not known yet.
	digest digest.Digest
	// maker is nil for an artifact that is downloaded.
	maker Maker
	// namespace is the namespace that the room is counted for.
	namespace string
	// shown is the published URL as it may appear in a message.
	shown string
}

func (l location) fail(kind Kind, err error) error {
	return &FetchError{Kind: kind, URL: l.shown, err: err}
}

// locate checks what can be checked without a request.
func (s *Store) locate(ref Reference) (location, error) {
	l := location{maker: ref.Maker, namespace: ref.Namespace, key: flightKey{owner: ref.owner()}}
	var err error
	if l.maker == nil {
		if l.key.url, l.shown, err = parseURL(ref.URL); err != nil {
			return l, l.fail(Unusable, err)
		}
	}
	if l.maker == nil || ref.Digest != "" {
		if l.digest, err = digest.Parse(ref.Digest); err != nil {
			return l, l.fail(Unusable, fmt.Errorf("digest %.160q: %w", ref.Digest, err)) // no digest is longer
		}
	}
	switch {
	case l.maker != nil && l.digest != "" && l.digest.Algorithm() != digest.Canonical:
		return l, l.fail(Unusable, fmt.Errorf("digest %s: what is made here has digests of type %s", l.digest, digest.Canonical))
	case l.maker != nil:
		return l, nil
	case ref.Size != nil && *ref.Size > s.options.Limits.MaxDownloadSize:
		return l, l.fail(TooLarge, fmt.Errorf("its size of %d bytes exceeds the limit of %d bytes", *ref.Size, s.options.Limits.MaxDownloadSize))
	}
	l.key.digest = l.digest
	return l, nil
}

// maxURL bounds a URL in bytes, because the URLs of running and failed downloads are kept in memory.
const maxURL = 4 << 10

// parseURL returns the URL and how it may be shown. Its errors do not quote the URL.
func parseURL(raw string) (checked, shown string, err error) {
	const unknown = "with an invalid URL"
	if len(raw) > maxURL {
		return "", unknown, fmt.Errorf("the URL has more than %d bytes", maxURL)
	}
	parsed, err := url.Parse(raw)
	if err != nil {
		return "", unknown, errors.New("the URL cannot be parsed")
	}
	if parsed.Host == "" {
		return "", unknown, errors.New("the URL has no host")
	}
	shown = (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path, RawPath: parsed.RawPath}).String()
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		return "", shown, fmt.Errorf("the scheme %q is neither http nor https", parsed.Scheme)
	}
	return parsed.String(), shown, nil
}
