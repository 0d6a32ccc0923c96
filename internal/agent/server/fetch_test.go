package server

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/agent/client"
)

func TestASourceIsFetchedFromAURL(t *testing.T) {
	a := startAgent(t, t.TempDir())
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path != "/app.tar.gz" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(source.content)
	}))
	defer server.Close()
	a.Expect(a.FetchSource(t.Context(), source.digest, server.URL+"/app.tar.gz?token=canary")).To(Succeed())
	a.Expect(a.GetInfo(t.Context())).To(HaveField("SourceDigest", source.digest))
	a.Expect(a.FetchSource(t.Context(), source.digest, server.URL+"/app.tar.gz")).To(Succeed())
	a.Expect(requests.Load()).To(BeEquivalentTo(1), "what is there is not fetched again")
	a.start("a")

	other := digest.FromString("other").String()
	a.Expect(a.FetchSource(t.Context(), other, server.URL)).To(MatchError(client.ErrBusy))
}

func TestWhyASourceCannotBeFetchedIsReported(t *testing.T) {
	a := startAgent(t, t.TempDir())
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(source.content) }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/other":
			_, _ = w.Write([]byte("other"))
		case "/moved":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/html":
			_, _ = w.Write([]byte("<html>"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	const userinfo = "http://user:canary@"
	for name, test := range map[string]struct {
		url, digest string
		kind        error
	}{
		"missing":         {url: userinfo + strings.TrimPrefix(server.URL, "http://") + "/none?token=canary", kind: client.ErrFetchFailed},
		"another digest":  {url: server.URL + "/other?canary", kind: client.ErrDigestMismatch},
		"another host":    {url: server.URL + "/moved?canary", kind: client.ErrFetchFailed},
		"nobody":          {url: userinfo + "127.0.0.1:1/canary-free?token=canary", kind: client.ErrFetchFailed},
		"not an archive":  {url: server.URL + "/html", digest: digest.FromString("<html>").String(), kind: client.ErrInvalid},
		"a file":          {url: "file:///etc/passwd", kind: client.ErrInvalid},
		"no URL":          {url: "", kind: client.ErrInvalid},
		"not a digest":    {url: server.URL, digest: "latest", kind: client.ErrInvalid},
		"an endless name": {url: server.URL + "/" + strings.Repeat("x", maxURLLength), kind: client.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if test.digest == "" {
				test.digest = source.digest
			}
			err := a.FetchSource(t.Context(), test.digest, test.url)
			g.Expect(err).To(MatchError(test.kind))
			g.Expect(strings.ReplaceAll(err.Error(), "canary-free", "")).NotTo(ContainSubstring("canary"))
			g.Expect(err.Error()).NotTo(ContainSubstring(digest.FromString("other").Encoded()))
			g.Expect(a.GetInfo(t.Context())).To(HaveField("SourceDigest", ""))
		})
	}
}

func TestAServerWithMutualTLSIsNotForAgents(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	a := startAgent(t, t.TempDir())
	err := a.FetchSource(t.Context(), digest.FromString("x").String(), strings.Replace(server.URL, "https://", "http://", 1))
	g.Expect(err).To(MatchError(client.ErrFetchFailed))
	g.Expect(err).To(MatchError(ContainSubstring("400 Bad Request: a server that requires mutual TLS answers plain HTTP so, and workspaces have no identity for it")))
}
