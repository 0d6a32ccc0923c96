package artifact

import (
	"context"
	"fmt"
	"sync"

	"github.com/opencontainers/go-digest"
)

// Fetch downloads the artifact, or has its Maker make it, verifies and stores it, unless it is stored. Whoever asks for the
// same artifact at the same time shares one download or making; it goes on as long as anybody waits for it. An error is of
// type *FetchError, or the end of ctx. Stored tells the digest afterwards.
//
// Nothing is remembered of a failure: the next call tries again.
func (s *Store) Fetch(ctx context.Context, ref Reference) error {
	from, err := s.locate(ref)
	if err != nil {
		return err
	}
	if s.Stored(ref) != "" {
		return nil
	}
	f := s.flights.join(ctx, from, func(ctx context.Context) (digest.Digest, error) {
		// The flight before this one may have ended just now.
		if stored := s.Stored(ref); stored != "" {
			return digest.Digest(stored), nil
		}
		if from.maker != nil {
			return s.make(ctx, from)
		}
		return from.digest, s.fetch(ctx, from)
	})
	defer s.flights.leave(f)
	select {
	case <-f.done:
		return f.resultFor(from)
	case <-ctx.Done():
		return fmt.Errorf("fetch artifact %s: %w", from.shown, context.Cause(ctx))
	}
}

func (s *Store) fetch(ctx context.Context, from location) error {
	received, err := s.download(ctx, from)
	if err != nil {
		return err
	}
	defer received.remove()
	return s.store(ctx, received, from.digest, from.shown)
}

// flights are the downloads and makings in progress.
type flights struct {
	mu sync.Mutex
	// running has a download per digest and URL, and a making per key of a Maker. Two sources that publish the same digest at different places do not
	// share one, so that a server that is stuck or lies cannot hold up the users of another.
	running map[flightKey]*flight
}

type flightKey struct {
	digest digest.Digest
	url    string
	maker  makerKey
}

// flight is one download or making and those who wait for it.
type flight struct {
	key     flightKey
	waiting int
	cancel  context.CancelFunc
	// done is closed at the end; digest and err are valid then.
	done   chan struct{}
	digest digest.Digest
	err    error
}

// resultFor compares what was stored with what is wanted.
func (f *flight) resultFor(from location) error {
	if f.err == nil && from.digest != "" && f.digest != from.digest {
		return &FetchError{Kind: Integrity, URL: from.shown, made: from.maker != nil,
			err: fmt.Errorf("digest mismatch: expected %s, made %s", from.digest, f.digest)}
	}
	return f.err
}

// join takes part in the download, which it starts when there is none.
func (l *flights) join(ctx context.Context, from location, fetch func(context.Context) (digest.Digest, error)) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.running[from.key]
	if f == nil {
		// Without the end of ctx: the first who waits may be the first who leaves.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{key: from.key, cancel: cancel, done: make(chan struct{})}
		if l.running == nil {
			l.running = map[flightKey]*flight{}
		}
		l.running[from.key] = f
		go func() {
			defer cancel()
			stored, err := fetch(ctx)
			l.end(f, stored, err)
		}()
	}
	f.waiting++
	return f
}

// leave cancels the download when nobody else waits for it.
func (l *flights) leave(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel()
		l.remove(f)
	}
}

func (l *flights) end(f *flight, stored digest.Digest, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(f)
	f.digest, f.err = stored, err
	close(f.done)
}

func (l *flights) remove(f *flight) {
	if l.running[f.key] == f {
		delete(l.running, f.key)
	}
}
