package download_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/artifact/download"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

func TestServerThatSendsAlmostNothingIsGivenUp(t *testing.T) {
	g := NewWithT(t)
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte("x"))
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	downloads := download.New(download.Options{MaxSize: 1 << 20, Timeout: time.Minute, Retries: 2, Window: time.Second})
	_, err := downloads.Fetch(t.Context(), server.URL, digest.FromString("x"), dir)
	var slow *throughput.Error
	g.Expect(err).To(BeAssignableToTypeOf(slow))
	g.Eventually(ended).WithTimeout(10 * time.Second).Should(BeClosed())
	g.Expect(os.ReadDir(dir)).To(BeEmpty())
}

func TestLinkLocalAddressIsRefused(t *testing.T) {
	downloads := download.New(download.Options{MaxSize: 1 << 20, Timeout: 10 * time.Second})
	for _, url := range []string{"http://169.254.169.254/latest", "http://[fe80::1]/", "http://[::ffff:169.254.169.254]/"} {
		t.Run(url, func(t *testing.T) {
			_, err := downloads.Fetch(t.Context(), url, digest.FromString("x"), t.TempDir())
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring("link-local address, which is refused")))
		})
	}
}
