package artifact_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// HaveKind matches a *artifact.FetchError of the kind.
func HaveKind(kind artifact.Kind) types.GomegaMatcher {
	return WithTransform(func(err error) (artifact.Kind, error) {
		var fetchError *artifact.FetchError
		if !errors.As(err, &fetchError) {
			return "", fmt.Errorf("not a FetchError: %w", err)
		}
		return fetchError.Kind, nil
	}, Equal(kind))
}

func TestFetchErrorShowsWhatToDo(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	large := bytes.Repeat([]byte("x"), 2000)
	tests := []struct {
		name     string
		content  []byte // served instead of a program
		answer   http.HandlerFunc
		change   func(*artifact.Reference)
		kind     artifact.Kind
		message  string
		requests int
	}{
		{name: "not there", answer: status(404), kind: artifact.NotFound, message: "the server answers 404 Not Found", requests: 1},
		{name: "there no longer", answer: status(410), kind: artifact.NotFound, message: "410 Gone", requests: 1},
		{name: "forbidden", answer: status(403), kind: artifact.Unavailable, message: "403 Forbidden", requests: 1},
		{name: "no content", answer: status(204), kind: artifact.Unavailable, message: "204 No Content", requests: 1},
		{name: "server error", answer: status(503), kind: artifact.Unavailable, message: "an error of its own (5xx)", requests: 3},
		{name: "redirected", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again", http.StatusFound)
		}, kind: artifact.Unavailable, message: "redirected, which is refused", requests: 1},
		{name: "redirected to another scheme", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, kind: artifact.Unavailable, message: "unsupported protocol scheme", requests: 3},
		{name: "nobody listens", change: func(ref *artifact.Reference) { ref.URL = "http://127.0.0.1:1/a.tar.gz" },
			kind: artifact.Unavailable, message: "connection refused"},
		{name: "wrong digest", change: func(ref *artifact.Reference) { ref.Digest = digest.FromString("other").String() },
			kind: artifact.Integrity, message: "digest mismatch: expected " + digest.FromString("other").String(), requests: 1},
		{name: "size beyond the limit", change: func(ref *artifact.Reference) { *ref.Size = 1001 },
			kind: artifact.TooLarge, message: "its size of 1001 bytes exceeds the limit of 1000 bytes"},
		{name: "content length beyond the limit", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			_, _ = w.Write(large)
		}, kind: artifact.TooLarge, message: "more than the limit of 1000 bytes", requests: 1},
		{name: "content beyond the limit", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush() // so that no length is declared
			_, _ = w.Write(large)
		}, kind: artifact.TooLarge, message: "more than the limit of 1000 bytes", requests: 1},
		{name: "not an archive", content: []byte("<html>"), kind: artifact.Unusable, message: "archive is not acceptable", requests: 1},
		{name: "archive that leaves its directory", content: tarball(tar.Header{Name: "../evil"}, nil),
			kind: artifact.Unusable, message: `entry "../evil" has ".." in its name`, requests: 1},
		{name: "bomb", content: tarball(tar.Header{Name: "zeros"}, make([]byte, 200_000)),
			kind: artifact.TooLarge, message: "more than 100000 bytes unpacked", requests: 1},
		{name: "digest without algorithm", change: func(ref *artifact.Reference) { ref.Digest = strings.Repeat("a", 64) },
			kind: artifact.Unusable, message: "invalid checksum digest format"},
		{name: "no digest", change: func(ref *artifact.Reference) { ref.Digest = "" }, kind: artifact.Unusable, message: "invalid checksum digest format"},
		{name: "unknown digest algorithm", change: func(ref *artifact.Reference) { ref.Digest = "md5:d41d8cd98f00b204e9800998ecf8427e" },
			kind: artifact.Unusable, message: "unsupported digest algorithm"},
		{name: "digest that is a path", change: func(ref *artifact.Reference) { ref.Digest = "sha256:../../../etc/passwd" },
			kind: artifact.Unusable, message: "invalid checksum digest"},
		{name: "scheme", change: func(ref *artifact.Reference) { ref.URL = "ftp://host/a.tar.gz" }, kind: artifact.Unusable, message: `the scheme "ftp" is neither`},
		{name: "no URL", change: func(ref *artifact.Reference) { ref.URL = "" }, kind: artifact.Unusable, message: "the URL has no host"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			server := newServer(t)
			if tt.content == nil {
				tt.content = program("name: demo")
			}
			ref := server.serve("a.tar.gz", tt.content)
			if tt.change != nil {
				tt.change(&ref)
			}
			server.answerWith(tt.answer)
			dir := t.TempDir()
			store := newStore(t, artifact.Options{Dir: dir, Limits: artifact.Limits{MaxDownloadSize: 1000, MaxUnpackedSize: 100_000}})

			err := store.Fetch(t.Context(), ref)
			g.Expect(err).To(HaveKind(tt.kind))
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
			g.Expect(server.requests.Load()).To(BeEquivalentTo(tt.requests))
			g.Expect(store.Stored(ref)).To(BeEmpty())
			g.Expect(filesBelow(dir)).To(BeEmpty())
		})
	}
}

func TestServerWithMutualTLSNamesTheFlagThatIsMissing(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	store := newStore(t, artifact.Options{})
	err := store.Fetch(t.Context(), artifact.Reference{
		URL: strings.Replace(server.URL, "https://", "http://", 1) + "/a.tar.gz", Digest: digest.FromString("x").String(),
	})
	g.Expect(err).To(HaveKind(artifact.Unavailable))
	g.Expect(err).To(MatchError(ContainSubstring("400 Bad Request: a server that requires mutual TLS answers plain HTTP so; --authorized-artifact-server-spiffe-id")))
}

func TestErrorsHaveNoCredentials(t *testing.T) {
	server := newServer(t)
	host := strings.TrimPrefix(server.URL(), "http://")
	tests := map[string]struct {
		url    string
		answer http.HandlerFunc
	}{
		"of an answer":       {url: "http://user:canary@" + host + "/a.tar.gz?token=canary#canary"},
		"of a connection":    {url: "http://user:canary@127.0.0.1:1/a.tar.gz?token=canary"},
		"of a scheme":        {url: "ftp://user:canary@host/a.tar.gz?token=canary"},
		"of an invalid URL":  {url: "http://user:canary%zz@host/a.tar.gz"},
		"of an invalid port": {url: "http://user:canary@host:canary/a.tar.gz"},
		"of a redirect": {url: server.URL(), answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/?token=canary", http.StatusFound)
		}},
		"of an invalid redirect": {url: server.URL(), answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://host:port/?token=canary")
			w.WriteHeader(http.StatusFound)
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server.answerWith(tt.answer)
			store := newStore(t, artifact.Options{HTTPRetries: -1})
			err := store.Fetch(t.Context(), artifact.Reference{URL: tt.url, Digest: digest.FromString("x").String()})
			g.Expect(err).To(HaveOccurred())
			for ; err != nil; err = errors.Unwrap(err) {
				g.Expect(err.Error()).NotTo(ContainSubstring("canary"))
			}
		})
	}
}

func TestHostOverrideReplacesTheHost(t *testing.T) {
	server := newServer(t)
	host := strings.TrimPrefix(server.URL(), "http://")
	ref := server.publish("name: demo")
	ref.URL = strings.Replace(ref.URL, host, "source-controller.flux-system.svc.cluster.local.", 1)

	t.Setenv("SOURCE_CONTROLLER_LOCALHOST", host)
	NewWithT(t).Expect(newStore(t, artifact.Options{}).Fetch(t.Context(), ref)).To(Succeed())
}
