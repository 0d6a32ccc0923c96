package spiffe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

const (
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second
	// maxHeaderSize bounds the headers of a response, in bytes.
	maxHeaderSize = 64 << 10
)

// Service is a kind of servers that the controller sends requests to, with the names of the flags that have to agree, for messages.
type Service struct {
	Name string
	// Flag of this controller has the IDs of the servers, PeerFlag of the server those of its clients.
	Flag, PeerFlag string
}

// These are the services of Flux.
var (
	ArtifactServer = Service{"artifact server", "authorized-artifact-server-spiffe-id", "authorized-artifact-client-spiffe-id"}
	EventServer    = Service{"events receiver", "authorized-event-server-spiffe-id", "authorized-notifier-spiffe-id"}
)

// Error says why there is no mutual TLS with a server.
type Error struct {
	explanation string
	cause       error // may name the ID of the server
}

// Explanation says what has to be changed, without anything that the server has sent.
func (e *Error) Explanation() string { return e.explanation }

// Error implements error, for the log.
func (e *Error) Error() string {
	if errors.Is(e.cause, ErrNoIdentity) {
		return e.explanation
	}
	return fmt.Sprintf("%s: %v", e.explanation, e.cause)
}

// Unwrap returns the error of the handshake.
func (e *Error) Unwrap() error { return e.cause }

// Transport returns a transport that speaks mutual TLS to the peers, whatever the scheme of a URL is: as Flux's controllers do, which do not
// change the scheme in the status of sources. A port in the URL is kept; without one it is 443. Where there is no mutual TLS, the error is an
// *Error.
//
// The function dial connects; it may refuse addresses. The transport compresses nothing, and uses no proxy: the servers are in the cluster.
// There is no resumption of sessions, so that each new connection uses the newest identity and trust bundles. A connection is not used again
// after one of these has changed.
func (i *Identity) Transport(peers Peers, service Service, dial Dial) http.RoundTripper {
	config := tlsconfig.MTLSClientConfig(i, i, func(id spiffeid.ID, _ [][]*x509.Certificate) error {
		own, err := i.GetX509SVID()
		if err != nil {
			return err
		}
		if !peers.match(id, own.ID.TrustDomain()) {
			return &untrustedError{id}
		}
		return nil
	})
	verify := config.VerifyPeerCertificate
	config.VerifyPeerCertificate = nil // it would not be called if a session were resumed
	config.VerifyConnection = func(state tls.ConnectionState) error {
		var raw [][]byte
		for _, certificate := range state.PeerCertificates {
			raw = append(raw, certificate.Raw)
		}
		if err := verify(raw, nil); err != nil {
			return &certificateError{err}
		}
		return nil
	}
	base := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeaderSize,
		DisableCompression:     true,
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.transports = append(i.transports, base)
	return &transport{identity: i, service: service, base: base}
}

// Dial connects to an address, as net.Dialer.DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// untrustedError means that the ID of a server is none of the peers.
type untrustedError struct{ id spiffeid.ID }

func (e *untrustedError) Error() string { return fmt.Sprintf("the server's SPIFFE ID is %s", e.id) }

// certificateError means that the certificate of a server was not accepted.
type certificateError struct{ cause error }

func (e *certificateError) Error() string { return e.cause.Error() }
func (e *certificateError) Unwrap() error { return e.cause }

type transport struct {
	identity *Identity
	service  Service
	base     *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	t.identity.await(request.Context())
	own, err := t.identity.GetX509SVID()
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, t.service.explain(err, spiffeid.ID{})
	}
	secured := request.Clone(request.Context())
	secured.URL.Scheme = "https"
	response, err := t.base.RoundTrip(secured)
	if err != nil {
		return nil, t.service.explain(err, own.ID)
	}
	return response, nil
}

// CloseIdleConnections implements what http.Client looks for.
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// refusals are the texts of the alerts with which a server refuses a certificate. Their type is not exported.
var refusals = []string{
	"tls: bad certificate", "tls: unsupported certificate", "tls: revoked certificate", "tls: expired certificate", "tls: unknown certificate",
	"tls: unknown certificate authority", "tls: access denied", "tls: certificate required",
}

// explain returns an *Error for a handshake that failed, and all other errors as they are.
func (s Service) explain(err error, own spiffeid.ID) error {
	var (
		untrusted   *untrustedError
		certificate *certificateError
		plain       tls.RecordHeaderError
		network     *net.OpError
		invalid     x509.CertificateInvalidError
		explained   string
	)
	switch {
	case errors.Is(err, ErrNoIdentity):
		explained = err.Error()
	case errors.As(err, &untrusted):
		explained = fmt.Sprintf("the SPIFFE ID of the %s is none of those in --%s of this controller", s.Name, s.Flag)
	case errors.As(err, &certificate) && errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		explained = fmt.Sprintf("the SPIFFE identity of the %s has expired, or the clocks of both sides differ", s.Name)
	case errors.As(err, &certificate):
		explained = fmt.Sprintf("the certificate of the %s is not a SPIFFE identity of a trust domain that this controller knows", s.Name)
	case errors.As(err, &plain):
		explained = fmt.Sprintf("the %s does not speak TLS, which --%s of this controller requires: its --%s is not set", s.Name, s.Flag, s.PeerFlag)
	case errors.As(err, &network) && network.Op == "remote error":
		explained = fmt.Sprintf("the %s ended the TLS handshake, its log says why", s.Name)
		if slices.Contains(refusals, network.Err.Error()) {
			explained = fmt.Sprintf("the %s does not accept %s, the SPIFFE ID of this controller: its --%s has to contain it", s.Name, own, s.PeerFlag)
		}
	default:
		return err
	}
	return &Error{explained, err}
}
