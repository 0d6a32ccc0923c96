package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

// incoming is content on disk that nobody can see yet.
type incoming struct {
	path   string
	digest digest.Digest
	size   int64
}

// remove gives up the content; nothing happens when it was accepted.
func (i *incoming) remove() { _ = os.Remove(i.path) }

// Put stores content that was made here. It returns its digest, which has to be the given one unless that is empty, and
// is a sha256 then. Errors about the content are of type *FetchError.
func (s *Store) Put(ctx context.Context, wanted string, content io.Reader) (string, error) {
	algorithm := digest.Canonical
	if wanted != "" {
		parsed, err := parseDigest(wanted)
		if err != nil {
			return "", &FetchError{Kind: Unusable, err: err}
		}
		algorithm = parsed.Algorithm()
	}
	received, err := s.receive(content, algorithm)
	switch {
	case errors.Is(err, errTooLarge):
		return "", &FetchError{Kind: TooLarge, err: err}
	case err != nil:
		return "", fmt.Errorf("store artifact: %w", err)
	}
	defer received.remove()
	if wanted == "" {
		wanted = received.digest.String()
	}
	if err := s.store(ctx, received, digest.Digest(wanted), ""); err != nil {
		return "", err
	}
	return wanted, nil
}

// errTooLarge is returned for content with more bytes than the limit.
var errTooLarge = errors.New("too large")

// receive writes the content to disk, up to the limit of its size, and computes its digest.
func (s *Store) receive(content io.Reader, algorithm digest.Algorithm) (_ *incoming, err error) {
	file, err := os.CreateTemp(filepath.Join(s.options.Dir, incomingDirectory), "artifact-")
	if err != nil {
		return nil, err
	}
	received := &incoming{path: file.Name()}
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil {
			received.remove()
		}
	}()
	digester := algorithm.Digester()
	// One byte more than allowed tells content that goes on from content that ends at the limit.
	limited := io.LimitReader(content, s.options.Limits.MaxDownloadSize+1)
	received.size, err = io.Copy(io.MultiWriter(file, digester.Hash()), limited)
	if err != nil {
		return nil, err
	}
	if received.size > s.options.Limits.MaxDownloadSize {
		return nil, fmt.Errorf("%w: more than the limit of %d bytes", errTooLarge, s.options.Limits.MaxDownloadSize)
	}
	received.digest = digester.Digest()
	return received, nil
}

// store verifies the digest, then checks the archive, then makes the content visible.
func (s *Store) store(ctx context.Context, received *incoming, wanted digest.Digest, shown string) error {
	if received.digest != wanted {
		return &FetchError{Kind: Integrity, URL: shown,
			err: fmt.Errorf("digest mismatch: expected %s, computed %s", wanted, received.digest)}
	}
	file, err := os.Open(received.path)
	if err != nil {
		return &FetchError{Kind: Unavailable, URL: shown, err: err}
	}
	defer file.Close()
	if err := archive.Check(ctx, file, s.options.Limits); err != nil {
		return &FetchError{Kind: archiveKind(err), URL: shown, err: err}
	}
	if err := s.accept(received.path, wanted, received.size); err != nil {
		return &FetchError{Kind: Unavailable, URL: shown, err: err}
	}
	return nil
}

func archiveKind(err error) Kind {
	switch {
	case errors.Is(err, archive.ErrTooLarge):
		return TooLarge
	case errors.Is(err, archive.ErrInvalid):
		return Unusable
	default:
		return Unavailable
	}
}

// isDiskError tells a failure of this machine's disk from one of where the content comes from.
func isDiskError(err error) bool {
	var pathError *fs.PathError
	return errors.As(err, &pathError)
}
