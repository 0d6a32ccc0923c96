package artifact

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/utils/lru"
)

const (
	// makeTimeout ends a Maker that has no bound of its own, so that it cannot keep a slot for ever.
	makeTimeout = 15 * time.Minute
	// maxMade is how many digests of made artifacts are remembered, about 200 bytes each. What is forgotten is made again.
	maxMade = 16384
)

// makerKey is the hash of the key of a Maker, so that what is kept about it is small however long the key is. It is zero for
// an artifact that is downloaded.
type makerKey [sha256.Size]byte

func keyOf(maker Maker) makerKey {
	return sha256.Sum256([]byte(maker.Key()))
}

// made remembers the digests of what was made, the most recently used ones.
type made struct {
	digests *lru.Cache
}

func newMade(size int) made {
	return made{digests: lru.New(size)}
}

// digest of what was made for the key, empty when that is not known.
func (m made) digest(key makerKey) digest.Digest {
	known, _ := m.digests.Get(key)
	found, _ := known.(digest.Digest)
	return found
}

// Stored returns the digest under which the artifact is stored, empty when it is not stored. An artifact that is made here
// and whose digest the reference does not tell is found for as long as its making is remembered.
func (s *Store) Stored(ref Reference) string {
	wanted := digest.Digest(ref.Digest)
	if wanted == "" && ref.Maker != nil {
		wanted = s.made.digest(keyOf(ref.Maker))
	}
	if wanted == "" || !s.Has(wanted.String()) {
		return ""
	}
	return wanted.String()
}

// make has the artifact made, and stores it. It returns the digest of what was made, whatever digest is wanted: who waits
// compares. Its errors are of type *FetchError.
func (s *Store) make(ctx context.Context, from location) (made digest.Digest, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, makeTimeout, fmt.Errorf("not complete after %s: %w", makeTimeout, context.DeadlineExceeded))
	defer cancel()
	defer func() {
		if recovered := recover(); recovered != nil {
			// What it panicked with may be anything, so that neither users nor the log see it.
			s.options.Log.Error(errMakerPanicked, "cannot make an artifact", "stack", string(debug.Stack()))
			made, err = "", makeError(ctx, errMakerPanicked)
		}
	}()
	content, err := from.maker.Make(ctx)
	if err != nil {
		return "", makeError(ctx, err)
	}
	defer content.Close()
	stored, err := s.Put(ctx, "", contextReader{ctx, content})
	if err != nil {
		return "", makeError(ctx, err)
	}
	s.made.digests.Add(from.key.maker, digest.Digest(stored))
	return digest.Digest(stored), nil
}

var errMakerPanicked = errors.New("an internal error, which the log of the controller has")

// makeError gives an error of a Maker, or of storing what it made, the type that callers expect. What the Maker said stays
// in its chain.
func makeError(ctx context.Context, err error) error {
	var fetchError *FetchError
	if errors.As(err, &fetchError) {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	return &FetchError{Kind: Unavailable, made: true, err: err}
}

// contextReader reads until its context ends.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
