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

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// maker is a Maker that counts its calls.
type maker struct {
	key   string
	makes atomic.Int32
	make  func(ctx context.Context, to io.Writer) error
}

func (m *maker) Key() string { return m.key }

func (m *maker) Make(ctx context.Context, to io.Writer) error {
	m.makes.Add(1)
	return m.make(ctx, to)
}

// makerOf returns a Maker of the content, and a reference to it without a digest.
func makerOf(key string, content []byte) (*maker, artifact.Reference) {
	return makerBy(key, func(_ context.Context, to io.Writer) error {
		_, err := to.Write(content)
		return err
	})
}

func makerBy(key string, do func(context.Context, io.Writer) error) (*maker, artifact.Reference) {
	m := &maker{key: key, make: do}
	return m, artifact.Reference{Maker: m, Revision: "main@sha1:5a1f"}
}

func TestRequestShowsTheDigestOfWhatWasMade(t *testing.T) {
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
	made, ref := makerBy("one", func(_ context.Context, to io.Writer) error {
		<-proceed
		_, err := to.Write(content)
		return err
	})
	known := ref
	known.Digest = digest.FromBytes(content).String()
	store := newStore(t, artifact.Options{})
	// Two controllers have a fetcher each, and some of the waiters know the digest.
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

var errDiskFull = errors.New("disk full")

func TestMakingFailsInATypedWay(t *testing.T) {
	good := program("name: demo")
	write := func(content []byte) func(context.Context, io.Writer) error {
		return func(_ context.Context, to io.Writer) error {
			_, err := to.Write(content)
			return err
		}
	}
	for _, test := range []struct {
		name    string
		make    func(context.Context, io.Writer) error
		digest  string
		kind    artifact.Kind
		message string
	}{
		{"a kind of its own", func(context.Context, io.Writer) error {
			return fmt.Errorf("program app: %w", artifact.NewMakeError(artifact.NotFound, errors.New("gone")))
		}, "", artifact.NotFound, "program app: make artifact: gone"},
		{"panic", func(context.Context, io.Writer) error { panic("canary-secret") },
			"", artifact.Unavailable, "make artifact: an internal error"},
		{"too large", write(bytes.Repeat([]byte("x"), 5000)), "", artifact.TooLarge, "more than the limit of 2000 bytes"},
		{"too large, with an error of its own", func(_ context.Context, to io.Writer) error {
			for {
				if _, err := to.Write([]byte("x")); err != nil {
					return artifact.NewMakeError(artifact.Unavailable, errors.New("cannot be read"))
				}
			}
		}, "", artifact.TooLarge, "more than the limit of 2000 bytes"},
		{"another digest", write(good), digest.FromString("else").String(), artifact.Integrity, "digest mismatch: expected "},
		{"no archive", write([]byte("<html>")), "", artifact.Unusable, "gzip"},
		{"an error in the middle", func(_ context.Context, to io.Writer) error {
			_, err := to.Write(good[:10])
			return errors.Join(err, errDiskFull)
		}, "", artifact.Unavailable, "disk full"},
		{"no digest of ours", write(good), digest.SHA512.FromBytes(good).String(), artifact.Unusable, "of type sha256"},
		{"no digest at all", write(good), "latest", artifact.Unusable, `digest "latest"`},
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
			g.Expect(errors.Is(err, errDiskFull)).To(Equal(test.name == "an error in the middle"), "what a Maker returns is in the chain")
			g.Expect(log.String()).NotTo(ContainSubstring("canary"))
			g.Expect(store.Stored(ref)).To(BeEmpty())
		})
	}
}
