package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
)

// makeTimeout ends a Maker that has no bound of its own, so that it cannot keep a slot for ever.
const makeTimeout = 15 * time.Minute

// Fetch downloads the artifact, or calls its Maker, and verifies and stores it, unless it is stored already. Concurrent callers for the
// same artifact share one download or call of the Maker. It ends with the context of the first caller; that is enough, because the contexts
// of all callers end together, with the controller. An error is of type *FetchError. Stored returns the digest afterwards.
//
// Failures are not kept: the next call tries again.
func (s *Store) Fetch(ctx context.Context, ref Reference) error {
	from, err := s.locate(ref)
	if err != nil {
		return err
	}
	found, err, _ := s.flights.Do(from.key.String(), func() (any, error) {
		if stored := s.Stored(ref); stored != "" {
			return digest.Digest(stored), nil
		}
		brought, err := s.fetchContent(ctx, from)
		if errors.Is(err, syscall.ENOSPC) && s.freeDisk() {
			brought, err = s.fetchContent(ctx, from)
		}
		s.options.Metrics.Fetched(from.origin(), brought.size, err)
		return brought.digest, err
	})
	if err == nil && from.digest != "" && found != from.digest {
		return from.fail(Integrity, fmt.Errorf("digest mismatch: expected %s", from.digest))
	}
	return err
}

// incoming is content on disk that is not visible in the store yet.
type incoming struct {
	path   string
	digest digest.Digest
	size   int64
}

// origin returns how the store gets the content.
func (l location) origin() metrics.Origin {
	if l.maker != nil {
		return metrics.Made
	}
	return metrics.Downloaded
}

// fetchContent downloads or makes the content, checks the archive, and makes the content visible for the owner. It returns what it stored.
// For made content, the result has the digest of the content, whatever digest is wanted; callers compare both. Its errors are of type
// *FetchError.
func (s *Store) fetchContent(ctx context.Context, from location) (brought incoming, err error) {
	defer func() {
		if recover() != nil {
			s.options.Log.Error(errPanicked, "cannot fetch or check an artifact", "stack", string(debug.Stack()))
			brought, err = incoming{}, from.fail(Unavailable, errPanicked)
		}
	}()
	dir, err := os.MkdirTemp(filepath.Join(s.options.Dir, incomingDirectory), "artifact-")
	if err != nil {
		return incoming{}, from.fail(Unavailable, err)
	}
	defer os.RemoveAll(dir)
	get := s.download
	if from.maker != nil {
		get = s.make
	}
	received, err := get(ctx, from, dir)
	if err != nil {
		return incoming{}, err
	}
	file, err := os.Open(received.path)
	if err != nil {
		return incoming{}, from.fail(Unavailable, err)
	}
	defer file.Close()
	switch err := archive.Check(ctx, file, s.options.Limits); {
	case errors.Is(err, archive.ErrTooLarge):
		return incoming{}, from.fail(TooLarge, err)
	case errors.Is(err, archive.ErrInvalid):
		return incoming{}, from.fail(Unusable, err)
	case err != nil:
		return incoming{}, from.fail(Unavailable, err)
	}
	if err := s.accept(received, from.key.owner, from.namespace); err != nil {
		return incoming{}, from.fail(Unavailable, err)
	}
	if from.maker != nil {
		s.made.Add(from.key.owner, received.digest)
	}
	return received, nil
}

// download downloads the content to disk and verifies its digest.
func (s *Store) download(ctx context.Context, from location, dir string) (incoming, error) {
	path, err := s.downloads.Fetch(ctx, from.key.url, from.digest, dir)
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(path)
	}
	switch {
	case err == nil:
		return incoming{path, from.digest, info.Size()}, nil
	case errors.Is(err, download.ErrNotFound):
		return incoming{}, from.fail(NotFound, err)
	case errors.Is(err, download.ErrTooLarge):
		return incoming{}, from.fail(TooLarge, err)
	case errors.Is(err, download.ErrDigestMismatch):
		return incoming{}, from.fail(Integrity, err)
	}
	return incoming{}, from.fail(Unavailable, err)
}

// make lets the Maker write the content to disk, and computes its digest. The error of the Maker stays in the chain of an error.
func (s *Store) make(ctx context.Context, from location, dir string) (made incoming, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, makeTimeout, fmt.Errorf("not complete after %s: %w", makeTimeout, context.DeadlineExceeded))
	defer cancel()
	file, err := os.Create(filepath.Join(dir, "made"))
	if err != nil {
		return incoming{}, from.fail(Unavailable, err)
	}
	digester := digest.Canonical.Digester()
	to := &boundedWriter{ctx: ctx, to: io.MultiWriter(file, digester.Hash()), limit: s.options.Limits.MaxDownloadSize}
	err = errors.Join(s.makeInto(ctx, from.maker, to), file.Close())
	var known *FetchError
	switch cause := context.Cause(ctx); {
	// If a write failed, its error counts and not that of the Maker.
	case errors.Is(to.err, errTooLarge):
		return incoming{}, from.fail(TooLarge, to.err)
	case to.err != nil:
		return incoming{}, from.fail(Unavailable, to.err)
	case err == nil:
		return incoming{file.Name(), digester.Digest(), to.size}, nil
	case errors.As(err, &known):
		return incoming{}, err
	case errors.Is(cause, context.DeadlineExceeded):
		return incoming{}, from.fail(Unavailable, cause)
	}
	return incoming{}, from.fail(Unavailable, err)
}

// errPanicked replaces a panic. Unusual content may cause a panic, which would end the process for all tenants. The value of a panic may
// contain anything, so neither users nor the log see it.
var errPanicked = errors.New("an internal error, which the log of the controller has")

// makeInto calls the Maker, and returns a panic of it as an error.
func (s *Store) makeInto(ctx context.Context, maker Maker, to io.Writer) (err error) {
	defer func() {
		if recover() != nil {
			s.options.Log.Error(errPanicked, "cannot make an artifact", "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return maker.Make(ctx, to)
}

// errTooLarge is returned for content with more bytes than the limit.
var errTooLarge = errors.New("too large")

// boundedWriter writes until its context ends or more bytes come than the limit, and keeps the error that ended it.
type boundedWriter struct {
	ctx         context.Context
	to          io.Writer
	size, limit int64
	err         error
}

func (w *boundedWriter) Write(p []byte) (n int, err error) {
	switch {
	case w.err != nil:
		return 0, w.err
	case w.ctx.Err() != nil:
		w.err = context.Cause(w.ctx)
	case w.size+int64(len(p)) > w.limit:
		w.err = fmt.Errorf("%w: more than the limit of %d bytes", errTooLarge, w.limit)
	default:
		n, w.err = w.to.Write(p)
		w.size += int64(n)
	}
	return n, w.err
}
