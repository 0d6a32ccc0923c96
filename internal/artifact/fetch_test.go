package artifact_test

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/artifact"
)

func TestFetchStoresTheArtifactUnderItsDigest(t *testing.T) {
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512, digest.BLAKE3} {
		t.Run(algorithm.String(), func(t *testing.T) {
			g := NewWithT(t)
			server := newServer(t)
			ref := server.publish("name: demo")
			content := server.content(ref)
			ref.Digest = algorithm.FromBytes(content).String()
			dir := t.TempDir()
			store := newStore(t, artifact.Options{Dir: dir})

			g.Expect(store.Has(ref.Digest)).To(BeFalse())
			_, err := store.Open(ref.Digest)
			g.Expect(err).To(MatchError(artifact.ErrNotStored))

			g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
			g.Expect(store.Has(ref.Digest)).To(BeTrue())
			file, err := store.Open(ref.Digest)
			g.Expect(err).NotTo(HaveOccurred())
			defer file.Close()
			g.Expect(io.ReadAll(file)).To(Equal(content))
			g.Expect(file.Size).To(BeEquivalentTo(len(content)))

			path := filepath.Join(dir, algorithm.String(), digest.Digest(ref.Digest).Encoded())
			g.Expect(modeOf(path)).To(Equal(fs.FileMode(0o600)))
			g.Expect(modeOf(filepath.Dir(path))).To(Equal(fs.ModeDir | 0o700))

			g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
			g.Expect(server.requests.Load()).To(BeEquivalentTo(1), "what is stored is not fetched again")
		})
	}
}

func TestFetchTriesAgainAtOnceWhenServerOrConnectionFails(t *testing.T) {
	content := program("name: demo")
	tests := map[string]http.HandlerFunc{
		"server error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"connection cut before the answer": func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		},
		"connection cut in the content": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(content[:20])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"less content than announced": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write(content)
		},
	}
	for name, broken := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := newServer(t)
			ref := server.serve("a.tar.gz", content)
			server.answerWith(func(w http.ResponseWriter, r *http.Request) {
				server.answerWith(nil)
				broken(w, r)
			})
			store := newStore(t, artifact.Options{})
			started := time.Now()
			g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
			g.Expect(time.Since(started)).To(BeNumerically("<", 10*time.Second))
			g.Expect(server.requests.Load()).To(BeEquivalentTo(2))
		})
	}
}

func TestDigestMismatchHealsWhenTheServerIsRightAgain(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.serve("a.tar.gz", program("right"))
	server.answerWith(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(program("wrong")) })
	store := newStore(t, artifact.Options{})

	err := store.Fetch(t.Context(), ref)
	g.Expect(err).To(HaveKind(artifact.Integrity))
	g.Expect(err).To(MatchError(And(
		ContainSubstring(ref.Digest), ContainSubstring(digest.FromBytes(program("wrong")).String()))))
	g.Expect(store.Has(ref.Digest)).To(BeFalse())

	server.answerWith(nil)
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
}

func TestFetchEndsWithTheTimeout(t *testing.T) {
	stuck := func(first []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(first)
			if len(first) > 0 {
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"without an answer":        stuck(nil),
		"in the middle of content": stuck(program("name: demo")[:30]),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := newServer(t)
			ref := server.publish("name: demo")
			server.answerWith(answer)
			store := newStore(t, artifact.Options{HTTPTimeout: 300 * time.Millisecond})
			started := time.Now()
			err := store.Fetch(t.Context(), ref)
			g.Expect(err).To(HaveKind(artifact.Unavailable))
			g.Expect(err).To(MatchError(ContainSubstring("not complete after 300ms")))
			g.Expect(time.Since(started)).To(BeNumerically("<", 15*time.Second))
		})
	}
}

func TestOneDownloadServesAllWhoAskForIt(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: demo")
	asked := make(chan struct{})
	server.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		<-asked
		_, _ = w.Write(server.content(ref))
	})
	store := newStore(t, artifact.Options{})

	const callers = 100
	errs := make(chan error, callers)
	var started sync.WaitGroup
	for range callers {
		started.Add(1)
		go func() {
			started.Done()
			errs <- store.Fetch(t.Context(), ref)
		}()
	}
	started.Wait()
	g.Eventually(server.requests.Load).Should(BeEquivalentTo(1))
	close(asked)
	for range callers {
		g.Expect(<-errs).To(Succeed())
	}
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
}

func TestWaiterThatLeavesDoesNotEndTheDownloadForOthers(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: demo")
	proceed := make(chan struct{})
	cancelled := make(chan struct{})
	server.answerWith(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-proceed:
			_, _ = w.Write(server.content(ref))
		case <-r.Context().Done():
			close(cancelled)
		}
	})
	store := newStore(t, artifact.Options{})

	first, leave := context.WithCancel(t.Context())
	firstErr, secondErr := make(chan error), make(chan error)
	go func() { firstErr <- store.Fetch(first, ref) }()
	g.Eventually(server.requests.Load).Should(BeEquivalentTo(1))
	second := &watchedContext{Context: t.Context(), watched: make(chan struct{})}
	go func() { secondErr <- store.Fetch(second, ref) }()
	<-second.watched // It has joined.

	leave()
	g.Expect(<-firstErr).To(MatchError(context.Canceled))
	close(proceed)
	g.Expect(<-secondErr).To(Succeed())
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
	g.Expect(cancelled).NotTo(BeClosed())
}

func TestDownloadEndsWhenNobodyWaitsForIt(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: demo")
	cancelled := make(chan struct{})
	server.answerWith(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(cancelled)
	})
	store := newStore(t, artifact.Options{})

	ctx, leave := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- store.Fetch(ctx, ref) }()
	g.Eventually(server.requests.Load).Should(BeEquivalentTo(1))
	leave()
	g.Expect(<-failed).To(MatchError(context.Canceled))
	g.Eventually(cancelled).Should(BeClosed())

	server.answerWith(nil)
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed(), "the next one does not meet the cancelled download")
}

func TestServerThatIsStuckDoesNotHoldUpAnotherWithTheSameDigest(t *testing.T) {
	g := NewWithT(t)
	stuck, good := newServer(t), newServer(t)
	ref := good.publish("name: demo")
	stuckRef := ref
	stuckRef.URL = stuck.URL() + "/a.tar.gz"
	stuck.answerWith(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	store := newStore(t, artifact.Options{})

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- store.Fetch(ctx, stuckRef) }()
	g.Eventually(stuck.requests.Load).Should(BeEquivalentTo(1))
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	cancel()
	g.Expect(<-failed).To(HaveOccurred())
}

// watchedContext tells when somebody begins to wait for its end.
type watchedContext struct {
	context.Context
	once    sync.Once
	watched chan struct{}
}

func (c *watchedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.watched) })
	return c.Context.Done()
}

func modeOf(path string) (fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

// filesBelow gives the names of all files in the directory, apart from the hidden ones.
func filesBelow(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found = append(found, strings.TrimPrefix(path, dir+string(filepath.Separator)))
		}
		return err
	})
	return found, err
}
