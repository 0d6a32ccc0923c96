package download_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
)

// TestDownloadsAreTheSameOverATransport compares the fetcher of fluxcd/pkg with the one that takes its place where a transport is given.
func TestDownloadsAreTheSameOverATransport(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	send := func(content string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(content)) }
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   error // of the ones that callers distinguish
		says   string
	}{
		"content":       {answer: send("content")},
		"not found":     {answer: status(404), want: download.ErrNotFound, says: "not found: the server answers 404 Not Found"},
		"gone":          {answer: status(410), want: download.ErrNotFound, says: "not found: the server answers 410 Gone"},
		"forbidden":     {answer: status(403), says: "the server answers 403 Forbidden"},
		"bad request":   {answer: status(400), says: "the server answers 400 Bad Request: advice"},
		"server error":  {answer: status(502), says: "the server answers with an error of its own (5xx)"},
		"too large":     {answer: send(strings.Repeat("x", 1001)), want: download.ErrTooLarge, says: "too large: more than the limit of 1000 bytes"},
		"other content": {answer: send("other"), want: download.ErrDigestMismatch, says: "digest mismatch: expected " + digest.FromString("content").String()},
		"cut off": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			_, _ = w.Write([]byte("con"))
		}, says: "read the content: unexpected EOF"},
		"redirect": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again", http.StatusFound)
		}, says: "redirected, which is refused"},
		"redirect to another scheme": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, says: `unsupported protocol scheme "file"`},
		"invalid redirect": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://host:port/?token=canary")
			w.WriteHeader(http.StatusFound)
		}, says: "redirected to an invalid location"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tt.answer)
			t.Cleanup(server.Close)
			for transport, through := range map[string]http.RoundTripper{"fluxcd/pkg": nil, "transport": &http.Transport{DisableCompression: true}} {
				t.Run(transport, func(t *testing.T) {
					g := NewWithT(t)
					dir := t.TempDir()
					downloads := download.New(download.Options{MaxSize: 1000, Retries: 1, Timeout: time.Minute, Transport: through, TLSAdvice: "advice"})
					path, err := downloads.Fetch(t.Context(), server.URL+"/?token=canary", digest.FromString("content"), dir)
					if tt.says == "" {
						g.Expect(err).NotTo(HaveOccurred())
						g.Expect(os.ReadFile(path)).To(BeEquivalentTo("content"))
						return
					}
					g.Expect(err).To(MatchError(Equal(tt.says)))
					if tt.want != nil {
						g.Expect(err).To(MatchError(tt.want))
					}
					g.Expect(os.ReadDir(dir)).To(BeEmpty())
				})
			}
		})
	}
}

// explained is an error as spiffe.Error.
type explained struct{}

func (explained) Error() string       { return "the explanation: for the log" }
func (explained) Explanation() string { return "the explanation" }

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestAnExplanationIsShownAndItsCauseIsLogged(t *testing.T) {
	g := NewWithT(t)
	var log strings.Builder
	downloads := download.New(download.Options{MaxSize: 1000, Retries: 9, Timeout: time.Minute, Untrusted: true, Transport: failing{explained{}},
		Log: funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{})})
	_, err := downloads.Fetch(t.Context(), "http://source-controller/", digest.FromString("x"), t.TempDir())
	g.Expect(err).To(MatchError(Equal("the explanation")))
	g.Expect(log.String()).To(ContainSubstring("for the log"))
	g.Expect(strings.Count(log.String(), "no mutual TLS")).To(Equal(1), "it is not tried again at once")
}

func TestTheEndOfTheTimeDoesNotHideWhyTheTriesFailed(t *testing.T) {
	g := NewWithT(t)
	downloads := download.New(download.Options{MaxSize: 1000, Retries: 9, Timeout: 300 * time.Millisecond, Transport: failing{errors.New("the cause")}})
	_, err := downloads.Fetch(t.Context(), "http://source-controller/", digest.FromString("x"), t.TempDir())
	g.Expect(err).To(MatchError(Equal("not complete after 300ms: the cause")))
}
