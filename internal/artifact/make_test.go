package artifact_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/artifact"
)

// maker makes a program, and counts how often.
type maker struct {
	key   string
	makes atomic.Int32
	make  func(ctx context.Context) (io.ReadCloser, error)
}

func (m *maker) Key() string { return m.key }

func (m *maker) Make(ctx context.Context) (io.ReadCloser, error) {
	m.makes.Add(1)
	return m.make(ctx)
}

// makerOf returns a Maker of the content, and a reference to it without a digest.
func makerOf(key string, content []byte) (*maker, artifact.Reference) {
	return makerBy(key, func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
}

func makerBy(key string, do func(context.Context) (io.ReadCloser, error)) (*maker, artifact.Reference) {
	m := &maker{key: key, make: do}
	return m, artifact.Reference{Maker: m, Revision: "main@sha1:5a1f"}
}

func TestRequestTellsTheDigestOfWhatWasMade(t *testing.T) {
	g := NewWithT(t)
	content := program("name: demo")
	made, ref := makerOf("one", content)
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), 0)
	g.Expect(fetcher.Request(ref, waiterNamed("a"))).To(BeEmpty())
	g.Eventually(fetcher.Events()).Should(Receive(ForWaiter(waiterNamed("a"))))

	stored := digest.FromBytes(content).String()
	g.Expect(fetcher.Request(ref, waiterNamed("a"))).To(Equal(stored))
	g.Expect(fetcher.Request(ref, waiterNamed("b"))).To(Equal(stored), "others have it at once")
	ref.Digest = stored
	g.Expect(fetcher.Request(ref, waiterNamed("c"))).To(Equal(stored), "so have those who know the digest")
	g.Expect(made.makes.Load()).To(BeEquivalentTo(1))
}

func TestManyWhoWaitForOneKeyShareOneMaking(t *testing.T) {
	g := NewWithT(t)
	content := program("name: demo")
	proceed := make(chan struct{})
	made, ref := makerBy("one", func(context.Context) (io.ReadCloser, error) {
		<-proceed
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	known := ref
	known.Digest = digest.FromBytes(content).String()
	store := newStore(t, artifact.Options{})
	// Two controllers have a fetcher each, and some who wait know the digest.
	first, _ := startFetcher(t, store, 0)
	second, _ := startFetcher(t, store, 0)
	for i := range 500 {
		g.Expect(first.Request(ref, waiterNamed(fmt.Sprint("stack-", i)))).To(BeEmpty())
		g.Expect(second.Request(known, waiterNamed(fmt.Sprint("update-", i)))).To(BeEmpty())
	}
	g.Eventually(made.makes.Load).Should(BeEquivalentTo(1))
	g.Consistently(made.makes.Load, "100ms").Should(BeEquivalentTo(1))
	close(proceed)
	for range 500 {
		g.Eventually(first.Events()).Should(Receive())
		g.Eventually(second.Events()).Should(Receive())
	}
	g.Expect(made.makes.Load()).To(BeEquivalentTo(1))
	g.Expect(second.Request(known, waiterNamed("update-0"))).To(Equal(known.Digest))
}

func TestWhatWasEvictedIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	content, other := program("name: demo"), program("name: other")
	made, ref := makerOf("one", content)
	_, otherRef := makerOf("two", other)
	store := newStore(t, artifact.Options{
		Limits:       artifact.Limits{MaxDownloadSize: int64(len(content) + 5)},
		MaxStoreSize: int64(len(content) + 5),
	})
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	g.Expect(store.Stored(ref)).To(Equal(digest.FromBytes(content).String()))
	g.Expect(store.Fetch(t.Context(), otherRef)).To(Succeed())
	g.Expect(store.Stored(ref)).To(BeEmpty())
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	g.Expect(made.makes.Load()).To(BeEquivalentTo(2))
}

type namedError struct{ name string }

func (e *namedError) Error() string { return e.name }

func TestErrorOfAMakerReachesEachWaiterOnce(t *testing.T) {
	g := NewWithT(t)
	proceed := make(chan struct{})
	made, ref := makerBy("one", func(context.Context) (io.ReadCloser, error) {
		<-proceed
		return nil, fmt.Errorf("checkout: %w", &namedError{"the server hung up"})
	})
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), 0)
	for _, name := range []string{"a", "b"} {
		g.Expect(fetcher.Request(ref, waiterNamed(name))).To(BeEmpty())
	}
	close(proceed)
	g.Eventually(fetcher.Events()).Should(Receive())
	g.Eventually(fetcher.Events()).Should(Receive())
	for _, name := range []string{"a", "b"} {
		_, err := fetcher.Request(ref, waiterNamed(name))
		g.Expect(err).To(HaveKind(artifact.Unavailable))
		g.Expect(err).To(MatchError("make artifact: checkout: the server hung up"))
		var named *namedError
		g.Expect(errors.As(err, &named)).To(BeTrue())
	}
	g.Expect(made.makes.Load()).To(BeEquivalentTo(1))
	g.Expect(fetcher.Request(ref, waiterNamed("a"))).To(BeEmpty(), "the next request is the next attempt")
	g.Eventually(made.makes.Load).Should(BeEquivalentTo(2))
}

func TestMakingFailsInATypedWay(t *testing.T) {
	good := program("name: demo")
	read := func(content io.Reader) func(context.Context) (io.ReadCloser, error) {
		return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(content), nil }
	}
	for _, test := range []struct {
		name    string
		make    func(context.Context) (io.ReadCloser, error)
		digest  string
		kind    artifact.Kind
		message string
	}{
		{"a kind of its own", func(context.Context) (io.ReadCloser, error) {
			return nil, fmt.Errorf("program app: %w", artifact.NewMakeError(artifact.NotFound, errors.New("gone")))
		}, "", artifact.NotFound, "program app: make artifact: gone"},
		{"panic", func(context.Context) (io.ReadCloser, error) { panic("canary-secret") },
			"", artifact.Unavailable, "make artifact: an internal error"},
		{"panic while it is read", read(readerFunc(func([]byte) (int, error) { panic("canary-secret") })),
			"", artifact.Unavailable, "make artifact: an internal error"},
		{"too large", read(strings.NewReader(strings.Repeat("x", 5000))), "", artifact.TooLarge, "more than the limit of 2000 bytes"},
		{"another digest", read(bytes.NewReader(good)), digest.FromString("else").String(), artifact.Integrity, "digest mismatch: expected "},
		{"no archive", read(strings.NewReader("<html>")), "", artifact.Unusable, "gzip"},
		{"a reader that fails", read(iotest.ErrReader(&namedError{"disk full"})), "", artifact.Unavailable, "disk full"},
		{"no digest of ours", read(bytes.NewReader(good)), digest.SHA512.FromBytes(good).String(), artifact.Unusable, "of type sha256"},
		{"no digest at all", read(bytes.NewReader(good)), "latest", artifact.Unusable, `digest "latest"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			_, ref := makerBy("one", test.make)
			ref.Digest = test.digest
			var log strings.Builder
			store := newStore(t, artifact.Options{
				Limits: artifact.Limits{MaxDownloadSize: 2000},
				Log:    funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{}),
			})
			err := store.Fetch(t.Context(), ref)
			g.Expect(err).To(HaveKind(test.kind))
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(err).NotTo(MatchError(ContainSubstring("canary")))
			g.Expect(log.String()).NotTo(ContainSubstring("canary"))
			g.Expect(store.Has(test.digest)).To(BeFalse())
		})
	}
}

// readerFunc is a reader made of a function.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestMakingEndsWhenNobodyWaitsForIt(t *testing.T) {
	g := NewWithT(t)
	started, cancelled := make(chan struct{}), make(chan struct{})
	_, ref := makerBy("one", func(ctx context.Context) (io.ReadCloser, error) {
		close(started)
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	})
	fetcher, stop := startFetcher(t, newStore(t, artifact.Options{}), 0)
	g.Expect(fetcher.Request(ref, waiterNamed("a"))).To(BeEmpty())
	g.Eventually(started).Should(BeClosed())
	stop()
	g.Eventually(cancelled).Should(BeClosed())
}

func TestContentIsNotReadToItsEndWhenNobodyWaits(t *testing.T) {
	g := NewWithT(t)
	reading, closed := make(chan struct{}), make(chan struct{})
	_, ref := makerBy("one", func(context.Context) (io.ReadCloser, error) {
		return &endless{reading: reading, closed: closed}, nil
	})
	store := newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: 1 << 40}})
	ctx, leave := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- store.Fetch(ctx, ref) }()
	<-reading
	leave()
	g.Expect(<-failed).To(MatchError(context.Canceled))
	g.Eventually(closed).Should(BeClosed())
}

// endless content comes one byte at a time.
type endless struct {
	reading, closed chan struct{}
	read            bool
}

func (e *endless) Read(p []byte) (int, error) {
	if !e.read {
		e.read = true
		close(e.reading)
	}
	return 1, nil
}

func (e *endless) Close() error {
	close(e.closed)
	return nil
}

func TestMakingsCountAsDownloads(t *testing.T) {
	g := NewWithT(t)
	var running, most atomic.Int32
	proceed := make(chan struct{})
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), 2)
	for i := range 8 {
		_, ref := makerBy(fmt.Sprint(i), func(context.Context) (io.ReadCloser, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			<-proceed
			return nil, errors.New("done")
		})
		g.Expect(fetcher.Request(ref, waiterNamed(fmt.Sprint(i)))).To(BeEmpty())
	}
	g.Eventually(running.Load).Should(BeEquivalentTo(2))
	close(proceed)
	for range 8 {
		g.Eventually(fetcher.Events()).Should(Receive())
	}
	g.Expect(most.Load()).To(BeEquivalentTo(2))
}
