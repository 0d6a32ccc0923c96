package artifact

import (
	"context"
	"fmt"
	"sync"

	"github.com/opencontainers/go-digest"
)

// Fetch downloads the artifact, verifies and stores it, unless it is stored. Whoever asks for the same artifact at the
// same time shares one download; it goes on as long as anybody waits for it. An error is of type *FetchError, or the
// end of ctx.
//
// Nothing is remembered of a failure: the next call tries again.
func (s *Store) Fetch(ctx context.Context, ref Reference) error {
	from, err := s.locate(ref)
	if err != nil {
		return err
	}
	if s.Has(from.digest.String()) {
		return nil
	}
	f := s.flights.join(ctx, from, s.fetch)
	defer s.flights.leave(f)
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return fmt.Errorf("fetch artifact %s: %w", from.shown, context.Cause(ctx))
	}
}

func (s *Store) fetch(ctx context.Context, from location) error {
	// The flight before this one may have ended just now.
	if s.Has(from.digest.String()) {
		return nil
	}
	received, err := s.download(ctx, from)
	if err != nil {
		return err
	}
	defer received.remove()
	return s.store(ctx, received, from.digest, from.shown)
}

// flights are the downloads in progress.
type flights struct {
	mu sync.Mutex
	// running has a download per digest and URL. Two sources that publish the same digest at different places do not
	// share one, so that a server that is stuck or lies cannot hold up the users of another.
	running map[flightKey]*flight
}

type flightKey struct {
	digest digest.Digest
	url    string
}

// flight is one download and those who wait for it.
type flight struct {
	key     flightKey
	waiting int
	cancel  context.CancelFunc
	// done is closed at the end; err is valid then.
	done chan struct{}
	err  error
}

// join takes part in the download, which it starts when there is none.
func (l *flights) join(ctx context.Context, from location, fetch func(context.Context, location) error) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := flightKey{from.digest, from.url.String()}
	f := l.running[key]
	if f == nil {
		// Without the end of ctx: the first who waits may be the first who leaves.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{key: key, cancel: cancel, done: make(chan struct{})}
		if l.running == nil {
			l.running = map[flightKey]*flight{}
		}
		l.running[key] = f
		go func() {
			defer cancel()
			err := fetch(ctx, from)
			l.end(f, err)
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

func (l *flights) end(f *flight, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(f)
	f.err = err
	close(f.done)
}

func (l *flights) remove(f *flight) {
	if l.running[f.key] == f {
		delete(l.running, f.key)
	}
}
