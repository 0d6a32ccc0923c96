package git

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/stack-controller/stack-controller/internal/source/netguard"
)

const (
	infoRefs         = "/info/refs"
	serviceQuery     = "service=" + uploadPackCommand
	contentPrefix    = "application/x-git-upload-pack-"
	maxRedirects     = 5
	maxErrorBody     = 1 << 10
	maxHeaderBytes   = 256 << 10
	dialTimeout      = 15 * time.Second
	handshakeTimeout = 15 * time.Second
	idleConnTimeout  = time.Minute

	// A connection over HTTP/2 is left when it brings nothing for pingAfter, and no answer to a ping for pingTimeout after that. Otherwise one
	// that a gateway has dropped silently would be used for each request to the host until TCP gives up, after a quarter of an hour.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
)

// httpSession speaks git's smart protocol over HTTP (gitprotocol-http). Each command is a request of its own.
type httpSession struct {
	repository *repository
	client     *http.Client
	release    func()
	// base is the address of the repository, after redirects.
	base *url.URL
	body io.Closer
	// quotable says that the last answer may be shown.
	quotable bool
}

func (r *repository) connectHTTP(ctx context.Context) (session, error) {
	transport, release, err := r.transport()
	if err != nil {
		return nil, err
	}
	authorization, err := r.authorization(ctx, transport)
	if err != nil {
		release()
		return nil, err
	}
	return &httpSession{repository: r, release: release, base: r.endpoint.url(), body: http.NoBody, client: &http.Client{
		CheckRedirect: r.checkRedirect, Transport: &authorizer{transport, r, authorization}}}, nil
}

// authorizer sends the credentials to the host that they are for, and not to another host that a server redirects to.
//
// The credentials are also sent over plain HTTP when the URL says so. Flux requires an explicit permission for that. The manifests that
// must keep working have no such permission, and a user who writes http:// into a manifest has decided. A redirect from https to http is
// never followed.
//
// It also refuses long addresses of redirects: http.Client converts the host before it calls checkRedirect, and the time is quadratic in the
// length of an international name. A header of 64 KiB takes 14 s, and no context ends that.
type authorizer struct {
	base       http.RoundTripper
	repository *repository
	// authorization is the value of the header, "" for none.
	authorization string
}

func (a *authorizer) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := a.repository.checkHost(request.URL.Hostname()); err != nil {
		return nil, err
	}
	request = request.Clone(request.Context())
	request.URL.User = nil
	request.Header.Del("Authorization")
	if a.authorization != "" && a.repository.endpoint.sameHost(endpointOf(request.URL)) {
		request.Header.Set("Authorization", a.authorization)
	}
	response, err := a.base.RoundTrip(request)
	if err == nil && len(response.Header.Get("Location")) > maxURLLength {
		_ = response.Body.Close()
		return nil, a.repository.fail(Unreachable, "the server redirects to an invalid address")
	}
	return response, err
}

// checkHost refuses a host that is a local address before a proxy is asked to connect to it. Only the proxy knows the address of a host
// name.
func (r *repository) checkHost(host string) error {
	if r.client.options.AllowLocalAddresses {
		return nil
	}
	return netguard.CheckHost(host)
}

// checkRedirect allows up to maxRedirects redirects, but none to a weaker transport, and none to another host with a client certificate. As
// in git, only the first request of a conversation is redirected, and only to the same request for another repository. Otherwise whoever
// chooses the server could request any page of any host through the controller, and read its status in the message.
func (r *repository) checkRedirect(request *http.Request, via []*http.Request) error {
	to := endpointOf(request.URL)
	switch {
	case via[0].Method != http.MethodGet:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects:
		return r.fail(Unreachable, "the server redirects more than %d times", maxRedirects)
	case to.scheme != schemeHTTP && to.scheme != schemeHTTPS:
		return r.fail(Unreachable, "the server redirects to something else than http or https")
	case !validHost(to.host) || !validPort(to.port):
		return r.fail(Unreachable, "the server redirects to an invalid address")
	case !strings.HasSuffix(to.path, infoRefs) || request.URL.RawQuery != serviceQuery:
		return r.fail(RepositoryNotFound, "the server redirects to something that is not a git repository: this may be its login page")
	case to.scheme == schemeHTTP && via[len(via)-1].URL.Scheme == "https":
		return r.fail(Unreachable, "the server redirects from https to http, which is not followed")
	case len(r.remote.ClientCert) > 0 && !r.endpoint.sameHost(to):
		return r.fail(Unreachable, "the server redirects to another host, which is not followed with a client certificate")
	}
	return nil
}

func (s *httpSession) advertise(ctx context.Context) (io.Reader, error) {
	response, err := s.do(ctx, http.MethodGet, infoRefs, 2, nil, "advertisement") //nolint:bodyclose // the session closes it
	if err != nil {
		return nil, err
	}
	final := response.Request.URL
	path, found := strings.CutSuffix(final.Path, infoRefs)
	if !found {
		return nil, s.repository.fail(RepositoryNotFound, "the server redirects to something that is not a git repository")
	}
	s.base = &url.URL{Scheme: final.Scheme, Host: final.Host, Path: path}
	return response.Body, nil
}

func (s *httpSession) request(ctx context.Context, version int, body []byte) (io.Reader, error) {
	response, err := s.do(ctx, http.MethodPost, "/"+uploadPackCommand, version, body, "result") //nolint:bodyclose // the session closes it
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// do sends one request, and again when a token of a GitHub App may be too new for the server.
func (s *httpSession) do(ctx context.Context, method, path string, version int, body []byte, kind string) (*http.Response, error) {
	for _, wait := range s.repository.client.tokenWaits {
		response, err := s.send(ctx, method, path, version, body, kind)
		if !errors.Is(err, ErrNewToken) {
			return response, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
	return s.send(ctx, method, path, version, body, kind)
}

// send sends one request. The body of the answer is closed with the session.
func (s *httpSession) send(ctx context.Context, method, path string, version int, body []byte, kind string) (*http.Response, error) {
	_ = s.body.Close()
	address := *s.base
	address.Path += path
	if method == http.MethodGet {
		address.RawQuery = serviceQuery
	}
	request, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// Some servers speak git only with clients whose name starts like this.
	request.Header.Set("User-Agent", "git/2.0 (stack-controller)")
	request.Header.Set("Accept", contentPrefix+kind)
	if version == 2 {
		request.Header.Set("Git-Protocol", protocolVersion2)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", contentPrefix+"request")
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	s.body, s.quotable = response.Body, isQuotable(response)
	if response.StatusCode != http.StatusOK {
		return nil, s.repository.statusError(response, time.Now())
	}
	if !strings.HasPrefix(response.Header.Get("Content-Type"), contentPrefix+kind) {
		return nil, s.repository.fail(RepositoryNotFound,
			"the server answers, but not as a git repository: this may be its login page, or not the address of a repository")
	}
	return response, nil
}

func (s *httpSession) explain(err error) error { return err }

func (s *httpSession) mayQuote() bool { return s.quotable }

func (s *httpSession) close() {
	_ = s.body.Close()
	s.release()
}

// authorization returns the value of the header Authorization, "" without credentials.
//
// A token is sent as the password of basic authentication, where GitHub, GitLab, Gitea and Azure DevOps all expect it. They ignore the user
// name. Bitbucket requires the user name x-token-auth for its access tokens. A user name that is given with the token, or in the URL, takes
// precedence.
func (r *repository) authorization(ctx context.Context, transport http.RoundTripper) (string, error) {
	auth := r.remote.Auth
	username, password := cmp.Or(auth.Username, r.endpoint.user), r.endpoint.password
	switch {
	case auth.Token != "":
		password = strings.TrimSpace(auth.Token)
		username = cmp.Or(username, map[string]string{"bitbucket.org": "x-token-auth"}[r.endpoint.host], "git")
	case strings.TrimSpace(auth.BearerToken) != "":
		token := strings.TrimSpace(auth.BearerToken)
		if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			return "", r.fail(InvalidCredentials, "the bearer token has a character that cannot be sent, such as a line feed")
		}
		return "Bearer " + token, nil
	case auth.GitHubApp != nil:
		token, err := r.client.apps.token(ctx, r, transport)
		if err != nil {
			return "", err
		}
		r.tokenIssued = token.issued
		username, password = "x-access-token", token.Value
	case auth.Username != "" || auth.Password != "":
		password = auth.Password
	case username == "" && password == "":
		return "", nil
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
	r.secrets.add(password, encoded)
	if strings.ContainsAny(username, "\r\n\x00:") || strings.ContainsAny(password, "\r\n\x00") {
		return "", r.fail(InvalidCredentials, "the user name or the password has a character that cannot be sent, such as a line feed")
	}
	return "Basic " + encoded, nil
}

// statusError explains a status other than 200.
func (r *repository) statusError(response *http.Response, now time.Time) error {
	authorized := response.Request != nil && response.Request.Header.Get("Authorization") != ""
	hint, status := r.quoteBody(response), response.StatusCode
	if wait, limited := rateLimit(response, now); limited {
		failed := r.fail(RateLimited, "the server wants fewer requests (status %d)%s", status, hint)
		failed.RetryAfter = wait
		return failed
	}
	switch isRefusal := slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}, status); {
	case isRefusal && authorized && r.hasNewToken(now):
		failed := r.fail(Unreachable, "the server does not accept a token of the GitHub App that was just issued, which may be over soon (status %d)%s", status, hint)
		failed.cause = ErrNewToken
		return failed
	case isRefusal && authorized && r.mayRenew(status, now):
		r.client.apps.invalidate(r)
	}
	switch {
	case status == http.StatusUnauthorized && !authorized:
		return r.fail(AuthenticationFailed, "the server wants credentials, or there is no such repository (status %d)%s", status, hint)
	case status == http.StatusUnauthorized:
		return r.fail(AuthenticationFailed, "the server does not accept the credentials (status %d)%s", status, hint)
	case status == http.StatusForbidden:
		return r.fail(AuthenticationFailed, "the credentials do not allow to read the repository (status %d)%s", status, hint)
	case status == http.StatusProxyAuthRequired:
		return r.fail(AuthenticationFailed, "the proxy does not accept the credentials (status %d)", status)
	case status == http.StatusNotFound || status == http.StatusGone:
		return r.fail(RepositoryNotFound, "there is no such repository, or the credentials do not show it (status %d)%s", status, hint)
	case status >= 300 && status < 400:
		return r.fail(Unreachable, "the server redirects where that is not followed (status %d)", status)
	}
	failed := r.fail(Unreachable, "the server answers with status %d%s", status, hint)
	failed.RetryAfter = retryAfter(response, now)
	return failed
}

// isQuotable reports whether the text of the answer may be shown: the host received the credentials, and no redirect led to it. Otherwise a
// tenant could name any host, or redirect to it, and read its answers through the controller.
func isQuotable(response *http.Response) bool {
	request := response.Request
	return request != nil && request.Header.Get("Authorization") != "" && request.Response == nil
}

// quoteBody returns the text of the answer, which git shows to its users, too.
func (r *repository) quoteBody(response *http.Response) string {
	if !isQuotable(response) || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // on an error, the part that was read is shown
	if shown := r.secrets.foreign(string(text)); shown != "" {
		return ": " + shown
	}
	return ""
}

// rateLimit recognises status 429, and 403 as GitHub uses it for its limits.
func rateLimit(response *http.Response, now time.Time) (wait time.Duration, limited bool) {
	exhausted := response.Header.Get("X-Ratelimit-Remaining") == "0"
	if response.StatusCode != http.StatusTooManyRequests &&
		(response.StatusCode != http.StatusForbidden || response.Header.Get("Retry-After") == "" && !exhausted) {
		return 0, false
	}
	wait = retryAfter(response, now)
	if reset, err := strconv.ParseInt(response.Header.Get("X-Ratelimit-Reset"), 10, 64); err == nil && wait == 0 && exhausted {
		// The time is bounded before the subtraction, because a false value could overflow.
		wait = max(time.Unix(min(reset, now.Add(maxRetryAfter).Unix()), 0).Sub(now), 0)
	}
	return wait, true
}

// retryAfter reads the header Retry-After, which has seconds or a date. The result is between zero and maxRetryAfter.
func retryAfter(response *http.Response, now time.Time) time.Duration {
	header, wait := response.Header.Get("Retry-After"), time.Duration(0)
	if seconds, err := strconv.ParseInt(header, 10, 64); err == nil {
		wait = time.Duration(min(max(seconds, 0), int64(maxRetryAfter/time.Second))) * time.Second
	} else if date, err := http.ParseTime(header); err == nil {
		wait = date.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}

// newTransport returns a transport for HTTP. It uses HTTP_PROXY, HTTPS_PROXY and NO_PROXY as they were when the client was created. These
// proxies may have any address, because the operator of the controller chooses them.
func newTransport(allowLocal bool, environment *httpproxy.Config) *http.Transport {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	guarded := netguard.Dialer(dialer, allowLocal)
	choose := environment.ProxyFunc()
	var proxies []string
	for _, scheme := range []string{"http", "https"} {
		if proxy, err := choose(&url.URL{Scheme: scheme, Host: "behind.the.proxy"}); err == nil && proxy != nil {
			proxies = append(proxies, endpointOf(proxy).address())
		}
	}
	return &http.Transport{
		Proxy: func(request *http.Request) (*url.URL, error) { return choose(request.URL) },
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if slices.Contains(proxies, address) {
				return dialer.DialContext(ctx, network, address)
			}
			return guarded.DialContext(ctx, network, address)
		},
		// Otherwise the error has the words of the proxy.
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
			if answer.StatusCode != http.StatusOK {
				return proxyError(answer.StatusCode)
			}
			return nil
		},
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleConnTimeout,
		MaxIdleConns:           100,
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
	}
}

// transport returns the transport for the repository, and a function to call after its use. A Remote with a CA, a client certificate or a
// proxy gets a transport of its own, because a connection must not outlive the trust that it was made with.
func (r *repository) transport() (*http.Transport, func(), error) {
	remote, c := r.remote, r.client
	if len(remote.CA) == 0 && len(remote.ClientCert) == 0 && len(remote.ClientKey) == 0 && remote.Proxy.Address == "" {
		return c.transport, func() {}, nil
	}
	proxies := c.proxies
	if remote.Proxy.Address != "" {
		proxies = &httpproxy.Config{} // They are not for those who choose another one.
	}
	transport := newTransport(c.options.AllowLocalAddresses, proxies)
	config := transport.TLSClientConfig
	if len(remote.CA) > 0 {
		authorities, err := r.certificateAuthorities()
		if err != nil {
			return nil, nil, err
		}
		config.RootCAs = authorities
	}
	if len(remote.ClientCert) > 0 || len(remote.ClientKey) > 0 {
		certificate, err := r.clientCertificate()
		if err != nil {
			return nil, nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
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

// proxyURL returns the URL of the explicit proxy.
func (r *repository) proxyURL() (*url.URL, error) {
	address, err := url.Parse(r.remote.Proxy.Address)
	if err != nil || !validHost(strings.ToLower(address.Hostname())) || !validPort(address.Port()) {
		return nil, r.fail(InvalidCredentials, "the address of the proxy is not a URL such as http://proxy:3128")
	}
	if !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, address.Scheme) {
		return nil, r.fail(InvalidCredentials, "the address of the proxy has another scheme than http, https or socks5")
	}
	if r.remote.Proxy.Username != "" || r.remote.Proxy.Password != "" {
		address.User = url.UserPassword(r.remote.Proxy.Username, r.remote.Proxy.Password)
	}
	return address, nil
}
