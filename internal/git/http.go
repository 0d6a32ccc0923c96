package git

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	uploadPack      = "git-upload-pack"
	infoRefs        = "/info/refs"
	maxRedirects    = 5
	maxErrorBody    = 1 << 10
	contentPrefix   = "application/x-git-upload-pack-"
	maxHeaderBytes  = 256 << 10
	idleConnTimeout = time.Minute
)

// httpSession speaks git's smart protocol over HTTP (gitprotocol-http).
type httpSession struct {
	repository *repository
	client     *http.Client
	release    func()
	// base is the address of the repository, after redirects.
	base *url.URL
	body io.Closer
}

func (r *repository) connectHTTP(ctx context.Context) (session, error) {
	transport, release, err := r.client.transportFor(r)
	if err != nil {
		return nil, err
	}
	username, password, err := r.basic(ctx, transport)
	if err != nil {
		release()
		return nil, err
	}
	s := &httpSession{repository: r, release: release, base: r.endpoint.url()}
	s.client = &http.Client{CheckRedirect: r.checkRedirect,
		Transport: &authorizer{base: transport, home: r.endpoint, username: username, password: password}}
	return s, nil
}

// authorizer sends the credentials to the host that they are for, and to no other that a server redirects to.
//
// They are also sent over plain HTTP when the URL says so. Flux asks for an explicit permission; the manifests that this
// product must keep working have none, and who writes http:// into a manifest has decided. What is never done is to follow a
// redirect from https to http.
type authorizer struct {
	base               http.RoundTripper
	home               endpoint
	username, password string
}

func (a *authorizer) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.URL.User = nil
	request.Header.Del("Authorization")
	if (a.username != "" || a.password != "") && a.home.sameHost(endpointOf(request.URL)) {
		request.SetBasicAuth(a.username, a.password)
	}
	return a.base.RoundTrip(request)
}

func endpointOf(u *url.URL) endpoint {
	return endpoint{scheme: scheme(strings.ToLower(u.Scheme)), host: strings.ToLower(u.Hostname()), port: u.Port()}
}

// checkRedirect follows a few redirects, never to a weaker transport, and none with a client certificate to another host. Only the
// first request of a conversation is redirected, as git does.
func (r *repository) checkRedirect(request *http.Request, via []*http.Request) error {
	to := endpointOf(request.URL)
	switch {
	case via[0].Method != http.MethodGet:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects:
		return r.fail(Unreachable, "the server redirects more than %d times", maxRedirects)
	case to.scheme != schemeHTTP && to.scheme != schemeHTTPS:
		return r.fail(Unreachable, "the server redirects to something else than http or https")
	case to.scheme == schemeHTTP && endpointOf(via[len(via)-1].URL).scheme == schemeHTTPS:
		return r.fail(Unreachable, "the server redirects from https to http, which is not followed")
	case len(r.remote.ClientCert) > 0 && !r.endpoint.sameHost(to):
		return r.fail(Unreachable, "the server redirects to another host, which is not followed with a client certificate")
	}
	return nil
}

func (s *httpSession) advertise(ctx context.Context) (io.Reader, error) {
	address := *s.base
	address.Path += infoRefs
	address.RawQuery = "service=" + uploadPack
	response, err := s.do(ctx, http.MethodGet, &address, nil, "advertisement") //nolint:bodyclose // the session closes it
	if err != nil {
		return nil, err
	}
	final := *response.Request.URL
	path, found := strings.CutSuffix(final.Path, infoRefs)
	if !found {
		return nil, s.repository.fail(RepositoryNotFound, "the server redirects to something that is not a git repository")
	}
	s.base = &url.URL{Scheme: final.Scheme, Host: final.Host, Path: path}
	// The refs come after a packet that names the service.
	packets := &packetReader{source: response.Body}
	if line, _, err := packets.line(); err != nil || line != "# service="+uploadPack {
		if err == nil {
			err = errProtocol
		}
		return nil, s.repository.conversationFailure(ctx, "list the references", s, err)
	}
	if _, flush, err := packets.next(); err != nil || !flush {
		return nil, s.repository.conversationFailure(ctx, "list the references", s, errProtocol)
	}
	return response.Body, nil
}

func (s *httpSession) request(ctx context.Context, wants []byte) (io.Reader, error) {
	address := *s.base
	address.Path += "/" + uploadPack
	response, err := s.do(ctx, http.MethodPost, &address, wants, "result") //nolint:bodyclose // the session closes it
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// do sends one request. The body of the answer is closed with the session.
func (s *httpSession) do(ctx context.Context, method string, address *url.URL, body []byte, kind string) (*http.Response, error) {
	s.closeBody()
	request, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// Some servers speak git only with clients whose name starts like this.
	request.Header.Set("User-Agent", "git/2.0 ("+s.repository.client.options.UserAgent+")")
	request.Header.Set("Accept", contentPrefix+kind)
	if method == http.MethodPost {
		request.Header.Set("Content-Type", contentPrefix+"request")
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	s.body = response.Body
	if response.StatusCode != http.StatusOK {
		return nil, s.repository.statusError(response, time.Now())
	}
	if got := response.Header.Get("Content-Type"); !strings.HasPrefix(got, contentPrefix+kind) {
		return nil, s.repository.fail(RepositoryNotFound,
			"the server answers, but not as a git repository: this may be its login page, or not the address of a repository")
	}
	return response, nil
}

func (s *httpSession) explain(err error) error { return err }

func (s *httpSession) closeBody() {
	if s.body != nil {
		_ = s.body.Close()
		s.body = nil
	}
}

func (s *httpSession) close() {
	s.closeBody()
	s.release()
}

// basic gives what to authenticate with over HTTP.
//
// A token goes where all of GitHub, GitLab, Gitea and Azure DevOps look for it, into the password of basic authentication; the
// user name is of no importance to them. Bitbucket wants x-token-auth there for its access tokens. A user name that is given
// with the token, or in the URL, is used instead.
func (r *repository) basic(ctx context.Context, transport http.RoundTripper) (username, password string, err error) {
	auth := r.remote.Auth
	username = auth.Username
	if username == "" {
		username = r.endpoint.user
	}
	switch {
	case auth.Token != "":
		password = strings.TrimSpace(auth.Token)
		if username == "" {
			username = tokenUser(r.endpoint.host)
		}
	case auth.GitHubApp != nil:
		username = "x-access-token"
		if password, err = r.client.apps.token(ctx, r, transport); err != nil {
			return "", "", err
		}
	case auth.Username != "" || auth.Password != "":
		password = auth.Password
	default:
		password = r.endpoint.password
	}
	r.secrets.addBasic(username, password)
	if strings.ContainsAny(username, "\r\n\x00:") || strings.ContainsAny(password, "\r\n\x00") {
		return "", "", r.fail(InvalidCredentials, "the user name or the password has a character that cannot be sent, such as a line feed")
	}
	return username, password, nil
}

func tokenUser(host string) string {
	if host == "bitbucket.org" {
		return "x-token-auth"
	}
	return "git"
}

// readSome reads the start of a body for a message.
func readSome(response *http.Response) (string, error) {
	content, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return string(content), nil
}
