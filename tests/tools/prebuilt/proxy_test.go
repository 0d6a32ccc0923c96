package prebuilt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

// tunnels is a proxy that takes every connection to the server, or refuses all of them if there is none.
type tunnels struct {
	server *httptest.Server
	asked  atomic.Int64
}

func (p *tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	if p.server == nil || r.Method != http.MethodConnect || r.Host != "example.com:443" {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	server, err := net.Dial("tcp", p.server.Listener.Addr().String())
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer server.Close()
	w.WriteHeader(http.StatusOK)
	client, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	go func() { _, _ = io.Copy(server, client) }()
	_, _ = io.Copy(client, server)
}

func TestProxyOfTheEnvironmentIsUsed(t *testing.T) {
	archive := archived(t, member{name: "bin/etcd", content: program(t)})
	// Its certificate is for example.com.
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive) }))
	t.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	for name, test := range map[string]struct {
		proxy   *tunnels
		without string // NO_PROXY
		asked   int64
		message string // empty if the tool is downloaded
	}{
		"used":    {proxy: &tunnels{server: server}, without: "example.org", asked: 1},
		"refuses": {proxy: &tunnels{}, without: "example.org", asked: 1, message: "example.com does not answer: Proxy Authentication Required"},
		"not for": {proxy: &tunnels{server: server}, without: "example.com", message: "example.com does not answer: only the proxy can be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pin := newHost(t).archive("etcd", archive)
			proxy := httptest.NewServer(test.proxy)
			t.Cleanup(proxy.Close)
			t.Setenv(MirrorVariable, "")
			t.Setenv("HTTPS_PROXY", proxy.URL)
			t.Setenv("NO_PROXY", test.without)
			f := newFinder(t, pin)
			transport := f.finder.fetcher.client.Transport.(*http.Transport)
			transport.TLSClientConfig = &tls.Config{RootCAs: trusted}
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				if address != proxy.Listener.Addr().String() {
					return nil, errors.New("only the proxy can be reached")
				}
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			paths, err := f.finder.Find(t.Context(), []string{"etcd"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(test.proxy.asked.Load()).To(Equal(test.asked), f.lines.String())
			if test.message == "" {
				g.Expect(paths["etcd"]).To(BeAnExistingFile(), f.lines.String())
				return
			}
			g.Expect(paths["etcd"]).To(Equal("/compiled/etcd"))
			g.Expect(f.lines.String()).To(ContainSubstring(test.message))
		})
	}
}
