package artifact_test

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
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

			g.Expect(store.Stored(ref)).To(BeEmpty())
			_, err := store.Open(ref)
			g.Expect(err).To(MatchError(artifact.ErrNotStored))

			g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
			g.Expect(store.Stored(ref)).To(Equal(ref.Digest))
			file, err := store.Open(ref)
			g.Expect(err).NotTo(HaveOccurred())
			defer file.Close()
			g.Expect(io.ReadAll(file)).To(Equal(content))
			g.Expect(file.Size).To(BeEquivalentTo(len(content)))

			path := filepath.Join(dir, algorithm.String(), digest.Digest(ref.Digest).Encoded(), "content")
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

func modeOf(path string) (fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

// filesBelow returns the names of all files in the directory, apart from the hidden ones.
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
