package spiffe

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"

	"github.com/stack-controller/stack-controller/tests/framework/workloadapi"
)

// serve starts a server that answers each request with its path, over TLS if there is a configuration. It returns an http URL of the server.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	address := "http://" + listener.Addr().String()
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.URL.Path)) }),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return address
}

func (f *fixture) serverConfig(authority *workloadapi.Authority, path string, clients ...string) *tls.Config {
	config, err := authority.ServerConfig(path, clients...)
	f.Expect(err).NotTo(HaveOccurred())
	return config
}

// get requests the URL over the transport for the peers.
func (f *fixture) get(ctx context.Context, url string, peers ...string) error {
	parsed, err := ParsePeers(peers)
	f.Expect(err).NotTo(HaveOccurred())
	client := &http.Client{Transport: f.identity.Transport(parsed, ArtifactServer, (&net.Dialer{}).DialContext)}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	f.Expect(err).NotTo(HaveOccurred())
	response, err := client.Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	return err
}

func TestEachWayToMissMutualTLSIsExplained(t *testing.T) {
	const peer = "spiffe://" + domain + server
	for name, tt := range map[string]struct {
		begin func(*testing.T, *fixture) (url string)
		peers []string
		want  string // empty for success
	}{
		"both sides agree": {
			begin: func(t *testing.T, f *fixture) string { return serve(t, f.serverConfig(f.authority, server, self)) },
		},
		"in the trust domain of its own": {
			begin: func(t *testing.T, f *fixture) string { return serve(t, f.serverConfig(f.authority, server, self)) },
			peers: []string{"spiffe://self/ns/flux-system/"},
		},
		"the server does not know the controller": {
			begin: func(t *testing.T, f *fixture) string { return serve(t, f.serverConfig(f.authority, server, "/other")) },
			want: "the artifact server does not accept spiffe://example.org" + self + ", the SPIFFE ID of this controller: " +
				"its --authorized-artifact-client-spiffe-id has to contain it",
		},
		"the controller does not know the server": {
			begin: func(t *testing.T, f *fixture) string {
				return serve(t, f.serverConfig(f.authority, "/secret-name", self))
			},
			want: "the SPIFFE ID of the artifact server is none of those in --authorized-artifact-server-spiffe-id of this controller",
		},
		"a server of another trust domain": {
			begin: func(t *testing.T, f *fixture) string {
				other, err := workloadapi.NewAuthority("secret-name.example")
				f.Expect(err).NotTo(HaveOccurred())
				return serve(t, f.serverConfig(other, server, self))
			},
			want: "the certificate of the artifact server is not a SPIFFE identity of a trust domain that this controller knows",
		},
		"a server whose identity has expired": {
			begin: func(t *testing.T, f *fixture) string {
				old, err := f.authority.Issue(server, -time.Minute)
				f.Expect(err).NotTo(HaveOccurred())
				return serve(t, tlsconfig.MTLSServerConfig(old, f.authority.Bundle(), tlsconfig.AuthorizeAny()))
			},
			want: "the SPIFFE identity of the artifact server has expired, or the clocks of both sides differ",
		},
		"a server that has no identity yet": {
			begin: func(t *testing.T, _ *fixture) string {
				return serve(t, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
					return nil, errors.New("none")
				}})
			},
			want: "the artifact server ended the TLS handshake, its log says why",
		},
		"a forged server": {
			begin: func(t *testing.T, f *fixture) string {
				forged, err := workloadapi.NewAuthority(domain)
				f.Expect(err).NotTo(HaveOccurred())
				return serve(t, f.serverConfig(forged, server, self))
			},
			want: "the certificate of the artifact server is not a SPIFFE identity of a trust domain that this controller knows",
		},
		"a server with a certificate for browsers": {
			begin: func(t *testing.T, _ *fixture) string {
				server := httptest.NewTLSServer(http.NotFoundHandler())
				t.Cleanup(server.Close)
				return server.URL
			},
			want: "the certificate of the artifact server is not a SPIFFE identity of a trust domain that this controller knows",
		},
		"a server without TLS": {
			begin: func(t *testing.T, _ *fixture) string { return serve(t, nil) },
			want: "the artifact server does not speak TLS, which --authorized-artifact-server-spiffe-id of this controller requires: " +
				"its --authorized-artifact-client-spiffe-id is not set",
		},
		"an expired identity": {
			begin: func(t *testing.T, f *fixture) string {
				f.issue(self, -time.Second)
				f.Eventually(f.ready).Should(MatchError(ErrNoIdentity))
				return serve(t, f.serverConfig(f.authority, server, self))
			},
			want: "this controller has no SPIFFE identity: it expired at ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := running(t)
			url := tt.begin(t, f)
			if tt.peers == nil {
				tt.peers = []string{peer}
			}
			if tt.want == "" {
				f.Expect(f.get(t.Context(), url+"/a", tt.peers...)).To(Succeed())
				return
			}
			// A server that refuses the controller may end the connection before the reason arrives; a second request gets it.
			explanation := func() string {
				err := f.get(t.Context(), url+"/a", tt.peers...)
				f.Expect(err).To(HaveOccurred())
				explained := (*Error)(nil)
				if !errors.As(err, &explained) {
					return err.Error()
				}
				return explained.Explanation()
			}
			f.Eventually(explanation).Should(HavePrefix(tt.want))
			f.Expect(explanation()).NotTo(ContainSubstring("secret-name"), "what the server sent is only for the log")
		})
	}
}

func TestWithoutIdentityNothingIsSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(t, 0)
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(net.Conn, http.ConnState) { connections.Add(1) }
	server.Start()
	defer server.Close()
	f.Expect(f.get(t.Context(), server.URL, "spiffe://self")).To(MatchError(ErrNoIdentity))
	f.Expect(connections.Load()).To(BeZero())
}

func TestRequestsSucceedWhileIdentitiesAreRenewed(t *testing.T) {
	t.Parallel()
	f := running(t)
	var seen atomic.Value
	config := f.serverConfig(f.authority, server, self)
	config.VerifyConnection = func(state tls.ConnectionState) error {
		seen.Store(state.PeerCertificates[0].SerialNumber.String())
		return nil
	}
	url := serve(t, config)
	serials := map[string]bool{}
	for range 20 {
		issued := f.issue(self, time.Hour)
		f.Eventually(f.identity.GetX509SVID).Should(HaveField("Certificates", issued.Certificates))
		f.Expect(f.get(t.Context(), url, "spiffe://self")).To(Succeed())
		f.Expect(seen.Load()).To(Equal(issued.Certificates[0].SerialNumber.String()), "the newest identity is used")
		serials[seen.Load().(string)] = true
	}
	f.Expect(serials).To(HaveLen(20))
}

func TestConnectionIsNotUsedAgainWhenItsServerIsTrustedNoLonger(t *testing.T) {
	t.Parallel()
	f := running(t)
	url := serve(t, f.serverConfig(f.authority, server, self))
	peers, err := ParsePeers([]string{"spiffe://self"})
	f.Expect(err).NotTo(HaveOccurred())
	client := &http.Client{Transport: f.identity.Transport(peers, ArtifactServer, (&net.Dialer{}).DialContext)}
	get := func() error {
		response, err := client.Get(url)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		return err
	}
	f.Expect(get()).To(Succeed())
	f.Expect(get()).To(Succeed())

	// The trust domain has new keys.
	f.authority, err = workloadapi.NewAuthority(domain)
	f.Expect(err).NotTo(HaveOccurred())
	f.issue(self, time.Hour)
	f.Eventually(get).Should(MatchError(ContainSubstring("not a SPIFFE identity of a trust domain that this controller knows")))
}

func TestThePortOfAURLIsKept(t *testing.T) {
	t.Parallel()
	f := running(t)
	var dialled []string
	dial := func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("no network")
	}
	client := &http.Client{Transport: f.identity.Transport(Peers{}, ArtifactServer, dial)}
	for _, url := range []string{"http://source-controller/", "http://source-controller:80/", "https://source-controller:9090/"} {
		_, err := client.Get(url)
		var explained *Error
		f.Expect(err).To(MatchError(ContainSubstring("no network")))
		f.Expect(errors.As(err, &explained)).To(BeFalse(), "nothing is wrong with TLS")
	}
	f.Expect(dialled).To(Equal([]string{"source-controller:443", "source-controller:80", "source-controller:9090"}))
}
