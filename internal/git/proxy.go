package git

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

const (
	dialTimeout      = 15 * time.Second
	handshakeTimeout = 15 * time.Second
)

// newTransport is what connections over HTTP have in common.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleConnTimeout,
		MaxIdleConns:           100,
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
	}
}

// environmentProxy follows HTTP_PROXY, HTTPS_PROXY and NO_PROXY as they are when the client is made.
func environmentProxy() func(*http.Request) (*url.URL, error) {
	choose := httpproxy.FromEnvironment().ProxyFunc()
	return func(request *http.Request) (*url.URL, error) { return choose(request.URL) }
}

// transportFor gives the transport for the repository and what to call after its use. Remotes with settings of their own get one of
// their own: a connection must not outlive the trust that it was made with.
func (c *Client) transportFor(r *repository) (*http.Transport, func(), error) {
	remote := r.remote
	if len(remote.CA) == 0 && len(remote.ClientCert) == 0 && len(remote.ClientKey) == 0 && remote.Proxy.Address == "" {
		return c.transport, func() {}, nil
	}
	transport := newTransport()
	transport.Proxy = c.transport.Proxy
	if err := r.configureTLS(transport.TLSClientConfig); err != nil {
		return nil, nil, err
	}
	if remote.Proxy.Address != "" {
		address, err := r.proxyURL()
		if err != nil {
			return nil, nil, err
		}
		transport.Proxy = http.ProxyURL(address)
	}
	return transport, transport.CloseIdleConnections, nil
}

func (r *repository) configureTLS(config *tls.Config) error {
	if len(r.remote.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(r.remote.CA) {
			return r.fail(InvalidCredentials, "the CA has no certificate in the PEM format")
		}
	}
	if len(r.remote.ClientCert) == 0 && len(r.remote.ClientKey) == 0 {
		return nil
	}
	certificate, err := tls.X509KeyPair(r.remote.ClientCert, r.remote.ClientKey)
	if err != nil {
		return r.fail(InvalidCredentials, "the client certificate and its key cannot be used together: both are needed, in the PEM format")
	}
	config.Certificates = []tls.Certificate{certificate}
	return nil
}

// proxyURL is the explicit proxy.
func (r *repository) proxyURL() (*url.URL, error) {
	address, err := url.Parse(r.remote.Proxy.Address)
	if err != nil || address.Host == "" {
		return nil, r.fail(InvalidCredentials, "the address of the proxy is not a URL such as http://proxy:3128")
	}
	switch address.Scheme {
	case "http", "https", "socks5", "socks5h":
	default:
		return nil, r.fail(InvalidCredentials, "the address of the proxy has another scheme than http, https or socks5")
	}
	if r.remote.Proxy.Username != "" || r.remote.Proxy.Password != "" {
		address.User = url.UserPassword(r.remote.Proxy.Username, r.remote.Proxy.Password)
	}
	return address, nil
}

// dial connects to the host of the repository, through the explicit proxy if there is one. It is for ssh, which the proxy
// variables of the environment are not about.
func (r *repository) dial(ctx context.Context) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout}
	if r.remote.Proxy.Address == "" {
		return dialer.DialContext(ctx, "tcp", r.endpoint.address())
	}
	address, err := r.proxyURL()
	if err != nil {
		return nil, err
	}
	if address.Scheme == "http" || address.Scheme == "https" {
		return r.dialConnect(ctx, dialer, address)
	}
	through, err := proxy.FromURL(address, dialer)
	if err != nil {
		return nil, err
	}
	return through.(proxy.ContextDialer).DialContext(ctx, "tcp", r.endpoint.address())
}

// dialConnect asks an HTTP proxy for a tunnel.
func (r *repository) dialConnect(ctx context.Context, dialer *net.Dialer, address *url.URL) (net.Conn, error) {
	port := address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[address.Scheme]
	}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address.Hostname(), port))
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if address.Scheme == "https" {
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: address.Hostname()}
		if err := r.configureTLS(config); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn = tls.Client(conn, config)
	}
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: r.endpoint.address()}, Host: r.endpoint.address(), Header: http.Header{}}
	if address.User != nil {
		password, _ := address.User.Password()
		withAuth := &http.Request{Header: http.Header{}}
		withAuth.SetBasicAuth(address.User.Username(), password)
		request.Header.Set("Proxy-Authorization", withAuth.Header.Get("Authorization"))
	}
	tunnel, err := openTunnel(conn, request)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return tunnel, nil
}

func openTunnel(conn net.Conn, request *http.Request) (net.Conn, error) {
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(&boundedReader{source: conn, remaining: maxHeaderBytes})
	response, err := http.ReadResponse(reader, request) //nolint:bodyclose // the body is the tunnel
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the proxy answers %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	// The server may have spoken already.
	early, err := reader.Peek(reader.Buffered())
	if err != nil {
		return nil, err
	}
	return &tunnelConn{Conn: conn, early: append([]byte(nil), early...)}, nil
}

// tunnelConn gives first what came together with the proxy's answer.
type tunnelConn struct {
	net.Conn
	early []byte
}

func (t *tunnelConn) Read(p []byte) (int, error) {
	if len(t.early) == 0 {
		return t.Conn.Read(p)
	}
	n := copy(p, t.early)
	t.early = t.early[n:]
	return n, nil
}
