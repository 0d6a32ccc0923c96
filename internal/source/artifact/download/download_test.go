package download_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
	"github.com/stack-controller/stack-controller/internal/source/netguard"
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

func TestRedirectIsFollowedOnlyWhereThatIsAllowed(t *testing.T) {
	g := NewWithT(t)
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/here", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("x"))
	}))
	defer server.Close()
	options := download.Options{MaxSize: 1 << 20, Timeout: time.Minute, Retries: 2}
	_, err := download.New(options).Fetch(t.Context(), server.URL+"/moved", digest.FromString("x"), t.TempDir())
	g.Expect(err).To(MatchError(Equal("redirected, which is refused")))
	g.Expect(requests.Load()).To(BeEquivalentTo(1), "it is not tried again")

	options.Redirects = true
	_, err = download.New(options).Fetch(t.Context(), server.URL+"/moved", digest.FromString("x"), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
}

func TestUntrustedURLsSayNothingAboutTheNetwork(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server of this machine was asked") }))
	defer server.Close()
	var log strings.Builder
	downloads := download.New(download.Options{MaxSize: 1 << 20, Timeout: time.Minute, Untrusted: true,
		Log: funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{})})
	_, err := downloads.Fetch(t.Context(), server.URL, digest.FromString("x"), t.TempDir())
	g.Expect(err).To(MatchError(netguard.ErrRefused))
	_, err = downloads.Fetch(t.Context(), "http://nobody.invalid/", digest.FromString("x"), t.TempDir())
	g.Expect(err).To(MatchError(Equal("no complete answer from the server")))
	g.Expect(log.String()).To(ContainSubstring("nobody.invalid"))
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

func TestProxyOfTheEnvironmentMayBeOnThisMachine(t *testing.T) {
	g := NewWithT(t)
	const proxied = "DOWNLOADS_ARE_PROXIED"
	if os.Getenv(proxied) == "" {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Host)) }))
		t.Cleanup(proxy.Close)
		// A process reads the variables once.
		process := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		process.Env = append(os.Environ(), proxied+"=true", "HTTP_PROXY="+proxy.URL, "NO_PROXY=", "no_proxy=")
		output, err := process.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(output))
		return
	}
	downloads := download.New(download.Options{MaxSize: 1 << 20, Timeout: time.Minute, Untrusted: true})
	g.Expect(downloads.Fetch(t.Context(), "http://source.example/file", digest.FromString("source.example"), t.TempDir())).NotTo(BeEmpty())
	_, err := downloads.Fetch(t.Context(), "http://127.0.0.1:1/file", digest.FromString("x"), t.TempDir())
	g.Expect(err).To(MatchError(netguard.ErrRefused), "a source may not be there")
}
