package artifact_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/fluxcd/pkg/testserver"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// server is an artifact server that counts requests, and whose answers can be replaced.
type server struct {
	*testserver.ArtifactServer
	t        *testing.T
	requests atomic.Int32
	answer   atomic.Pointer[http.HandlerFunc]
}

func newServer(t *testing.T) *server {
	t.Helper()
	g := NewWithT(t)
	artifacts, err := testserver.NewTempArtifactServer()
	g.Expect(err).NotTo(HaveOccurred())
	s := &server{ArtifactServer: artifacts, t: t}
	artifacts.WithMiddleware(func(files http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.requests.Add(1)
			if answer := s.answer.Load(); answer != nil {
				(*answer)(w, r)
				return
			}
			files.ServeHTTP(w, r)
		})
	})
	artifacts.Start()
	t.Cleanup(func() {
		artifacts.Stop()
		os.RemoveAll(artifacts.Root())
	})
	return s
}

// answerWith makes the function answer every request. With nil, the server serves its files again.
func (s *server) answerWith(answer http.HandlerFunc) {
	if answer == nil {
		s.answer.Store(nil)
		return
	}
	s.answer.Store(&answer)
}

// publish serves a program with the text, as source-controller would.
func (s *server) publish(text string) artifact.Reference {
	s.t.Helper()
	g := NewWithT(s.t)
	name, err := s.ArtifactFromFiles([]testserver.File{{Name: "Pulumi.yaml", Body: text}})
	g.Expect(err).NotTo(HaveOccurred())
	return s.reference(name)
}

// serve publishes the bytes as they are.
func (s *server) serve(name string, content []byte) artifact.Reference {
	s.t.Helper()
	g := NewWithT(s.t)
	g.Expect(os.WriteFile(filepath.Join(s.Root(), name), content, 0o600)).To(Succeed())
	return s.reference(name)
}

func (s *server) reference(name string) artifact.Reference {
	s.t.Helper()
	g := NewWithT(s.t)
	content, err := os.ReadFile(filepath.Join(s.Root(), name))
	g.Expect(err).NotTo(HaveOccurred())
	url, err := s.URLForFile(name)
	g.Expect(err).NotTo(HaveOccurred())
	size := int64(len(content))
	return artifact.Reference{URL: url, Digest: digest.FromBytes(content).String(), Revision: "main@sha1:5a1f", Size: &size}
}

// content returns the bytes that are published under the reference.
func (s *server) content(ref artifact.Reference) []byte {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Root(), filepath.Base(ref.URL)))
	NewWithT(s.t).Expect(err).NotTo(HaveOccurred())
	return content
}

func newStore(t *testing.T, options artifact.Options) *artifact.Store {
	t.Helper()
	if options.Dir == "" {
		options.Dir = t.TempDir()
	}
	store, err := artifact.NewStore(options)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return store
}

// tarball returns a gzip-compressed tarball with one entry.
func tarball(header tar.Header, content []byte) []byte {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	header.Size = int64(len(content))
	for _, err := range []error{w.WriteHeader(&header), write(w, content), w.Close(), zip.Close()} {
		if err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}

func write(w *tar.Writer, content []byte) error {
	_, err := w.Write(content)
	return err
}

// program returns a tarball whose Pulumi.yaml has the text.
func program(text string) []byte {
	return tarball(tar.Header{Name: "Pulumi.yaml", Mode: 0o600, Typeflag: tar.TypeReg}, []byte(text))
}
