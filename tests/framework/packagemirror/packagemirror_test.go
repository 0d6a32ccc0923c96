package packagemirror

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

// upstream is a registry of npm and an index of Python.
type upstream struct {
	*httptest.Server
	requests atomic.Int64
}

func startUpstream(t *testing.T) *upstream {
	u := &upstream{}
	mux := http.NewServeMux()
	answer := func(path, content string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.ReplaceAll(content, "URL", u.URL))
		})
	}
	answer("/npm/words", `{"dist": {"tarball": "URL/npm/words/-/words-1.0.0.tgz"}}`)
	answer("/npm/words/-/words-1.0.0.tgz", "the archive")
	answer("/simple/words/", `<a href="../../files/ab/words-1.0.0.whl#sha256=00" data-core-metadata="sha256=01">words-1.0.0.whl</a>`)
	answer("/files/ab/words-1.0.0.whl", "the wheel")
	answer("/files/ab/words-1.0.0.whl.metadata", "what describes it")
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		u.requests.Add(1)
		mux.ServeHTTP(w, request)
	}))
	t.Cleanup(u.Close)
	return u
}

func startMirror(t *testing.T, of *upstream) *Mirror {
	t.Helper()
	g := NewWithT(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	m := &Mirror{registry: of.URL + "/npm", index: func() (string, error) { return of.URL + "/simple", nil }, dir: t.TempDir()}
	g.Expect(m.start(listener, t.TempDir())).To(Succeed())
	t.Cleanup(m.Stop)
	return m
}

// get returns the status and the content of the answer.
func get(ctx context.Context, g *WithT, address string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	g.Expect(err).NotTo(HaveOccurred())
	response, err := http.DefaultClient.Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf("%d %s", response.StatusCode, strings.TrimSpace(string(content)))
}

func TestOfflineRegistryHasWhatWasAskedForBeforeAndAsksNobody(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	u := startUpstream(t)
	m := startMirror(t, u)
	g.Expect(get(ctx, g, m.OfflineNPM+"words")).To(Equal("404 there is no words"))
	g.Expect(u.requests.Load()).To(BeZero())
	archives, missing := m.Offline()
	g.Expect(archives).To(BeZero())
	g.Expect(missing).To(Equal([]string{"words"}))

	g.Expect(get(ctx, g, m.NPM+"words")).To(ContainSubstring(m.NPM + "words/-/words-1.0.0.tgz"))
	g.Expect(get(ctx, g, m.NPM+"words/-/words-1.0.0.tgz")).To(Equal("200 the archive"))
	g.Expect(get(ctx, g, m.NPM+"others")).To(HavePrefix("404 "))
	asked := u.requests.Load()
	g.Expect(get(ctx, g, m.OfflineNPM+"words")).To(ContainSubstring(m.OfflineNPM + "words/-/words-1.0.0.tgz"))
	g.Expect(get(ctx, g, m.OfflineNPM+"words/-/words-1.0.0.tgz")).To(Equal("200 the archive"))
	g.Expect(u.requests.Load()).To(Equal(asked))
	archives, missing = m.Offline()
	g.Expect(archives).To(Equal(1))
	g.Expect(missing).To(Equal([]string{"words"}))
}

func TestLinksOfThePythonIndexLeadToTheMirror(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	m := startMirror(t, startUpstream(t))
	file := m.URL + "/python/files/words-1.0.0.whl"
	g.Expect(get(ctx, g, file)).To(HavePrefix("404 "), "no page has named it yet")
	g.Expect(get(ctx, g, m.Python+"words/")).To(Equal(`200 <a href="` + file + `#sha256=00" data-core-metadata="sha256=01">words-1.0.0.whl</a>`))
	g.Expect(get(ctx, g, file)).To(Equal("200 the wheel"))
	g.Expect(get(ctx, g, file+".metadata")).To(Equal("200 what describes it"))
	g.Expect(get(ctx, g, m.Python+"others/")).To(HavePrefix("404 "))
}
