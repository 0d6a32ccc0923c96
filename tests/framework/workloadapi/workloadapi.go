// Package workloadapi serves a SPIFFE Workload API for tests, with a trust domain of its own: it issues an identity, renews it, refuses it or
// falls silent when a test says so.
package workloadapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Authority issues identities of one trust domain.
type Authority struct {
	domain      spiffeid.TrustDomain
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns an authority of the trust domain.
func NewAuthority(domain string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{{Scheme: "spiffe", Host: domain}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &Authority{spiffeid.RequireTrustDomainFromString(domain), certificate, key}, err
}

// Issue returns an identity with the path in the trust domain. It began a moment ago and ends after the lifetime, which may be negative.
func (a *Authority) Issue(path string, lifetime time.Duration) (*x509svid.SVID, error) {
	id, err := spiffeid.FromPath(a.domain, path)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(min(lifetime, 0) - time.Second), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, URIs: []*url.URL{id.URL()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &x509svid.SVID{ID: id, Certificates: []*x509.Certificate{certificate}, PrivateKey: key}, err
}

// Bundle returns what verifies the identities.
func (a *Authority) Bundle() *x509bundle.Bundle {
	return x509bundle.FromX509Authorities(a.domain, []*x509.Certificate{a.certificate})
}

// ServerConfig returns the TLS configuration of a server with the path as its identity, for clients with one of the other paths. All are of
// the trust domain.
func (a *Authority) ServerConfig(path string, clients ...string) (*tls.Config, error) {
	identity, err := a.Issue(path, time.Hour)
	if err != nil {
		return nil, err
	}
	var allowed []spiffeid.ID
	for _, client := range clients {
		id, err := spiffeid.FromPath(a.domain, client)
		if err != nil {
			return nil, err
		}
		allowed = append(allowed, id)
	}
	return tlsconfig.MTLSServerConfig(identity, a.Bundle(), tlsconfig.AuthorizeOneOf(allowed...)), nil
}

// API is a Workload API on a Unix socket. At first it refuses all clients.
type API struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	socket string

	mu      sync.Mutex
	server  *grpc.Server // nil when stopped
	issued  *workload.X509SVIDResponse
	silent  bool
	changed chan struct{} // closed at the next change
	calls   int
	sent    int
}

// Start serves a Workload API until the test ends.
func Start(t testing.TB) *API {
	t.Helper()
	// The path of a socket has to be short.
	dir, err := os.MkdirTemp("", "workloadapi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &API{socket: filepath.Join(dir, "api.sock"), changed: make(chan struct{})}
	if err := a.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	return a
}

// Address is the address for SPIFFE_ENDPOINT_SOCKET.
func (a *API) Address() string { return "unix://" + a.socket }

// Serve serves again after Stop.
func (a *API) Serve() error {
	listener, err := net.Listen("unix", a.socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, a)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = server
	go func() { _ = server.Serve(listener) }()
	return nil
}

// Stop ends all connections, and removes the socket.
func (a *API) Stop() {
	a.mu.Lock()
	server := a.server
	a.server = nil
	a.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// Send issues the identity, with the bundle of its authority, to all clients, also to those to come.
func (a *API) Send(identity *x509svid.SVID, bundle *x509bundle.Bundle) error {
	certificates, key, err := identity.MarshalRaw()
	if err != nil {
		return err
	}
	var trusted []byte
	for _, authority := range bundle.X509Authorities() {
		trusted = append(trusted, authority.Raw...)
	}
	a.change(func() {
		a.silent = false
		a.issued = &workload.X509SVIDResponse{Svids: []*workload.X509SVID{{
			SpiffeId: identity.ID.String(), X509Svid: certificates, X509SvidKey: key, Bundle: trusted,
		}}}
	})
	return nil
}

// Refuse answers all clients that there is no identity for them.
func (a *API) Refuse() { a.change(func() { a.issued, a.silent = nil, false }) }

// FallSilent makes the API accept calls and answer none.
func (a *API) FallSilent() { a.change(func() { a.silent = true }) }

// Calls returns how many calls have begun.
func (a *API) Calls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

// Sent returns how many identities were sent.
func (a *API) Sent() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent
}

func (a *API) change(apply func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	apply()
	close(a.changed)
	a.changed = make(chan struct{})
}

// FetchX509SVID implements the call of the protocol.
func (a *API) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	ctx := stream.Context()
	if header, _ := metadata.FromIncomingContext(ctx); len(header.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	a.mu.Lock()
	a.calls++
	a.mu.Unlock()
	for {
		a.mu.Lock()
		issued, silent, changed := a.issued, a.silent, a.changed
		a.mu.Unlock()
		switch {
		case silent:
		case issued == nil:
			return status.Error(codes.PermissionDenied, "no identity issued")
		default:
			if err := stream.Send(issued); err != nil {
				return fmt.Errorf("send the identity: %w", err)
			}
			a.mu.Lock()
			a.sent++
			a.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
