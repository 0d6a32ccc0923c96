package prebuilt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

const (
	// attempts is how often a file is asked for, when the failure may be a passing one.
	attempts = 3
	// maxRedirects is how many hosts may send a request on.
	maxRedirects = 5
)

// limits bound how long a fetcher waits.
type limits struct {
	connect time.Duration // for a connection
	tls     time.Duration // for a handshake
	header  time.Duration // for the beginning of an answer
	stall   time.Duration // for the next bytes of a body
	total   time.Duration // for a file, with all attempts
	pause   time.Duration // between two attempts
}

var defaultLimits = limits{
	connect: 5 * time.Second, tls: 10 * time.Second, header: 15 * time.Second, stall: 15 * time.Second, total: 10 * time.Minute, pause: time.Second,
}

// errStalled is why a response ended that had sent nothing for a while.
var errStalled = errors.New("no more bytes came")

// statusError is an answer with another status than 200.
type statusError struct {
	address, status string
	code            int
	challenge       string // WWW-Authenticate
}

func (e *statusError) Error() string { return fmt.Sprintf("%s answers %s", e.address, e.status) }

// unreachableError says that a host could not be reached, or does not answer.
type unreachableError struct {
	host string
	err  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("%s does not answer: %s", e.host, e.err)
}
func (e *unreachableError) Unwrap() error { return e.err }

// redirectError says why a redirect is not followed.
type redirectError struct{ problem string }

func (e *redirectError) Error() string { return e.problem }

// fetcher reads files over HTTPS. It sends no credentials of the user, follows redirects only to https, retries what may pass by itself, and
// asks a host that did not answer no second time. Proxies are those of the environment.
type fetcher struct {
	limits limits
	client *http.Client
	dialer *net.Dialer
	mirror *url.URL // an address before the host and path of each other address; may be nil, http on loopback, or file

	mu          sync.Mutex
	unreachable map[string]error // by host
}

// newFetcher returns a fetcher that asks the mirror, if it is not empty, instead of the hosts in addresses.
func newFetcher(mirror string, limits limits) (*fetcher, error) {
	f := &fetcher{limits: limits, dialer: &net.Dialer{Timeout: limits.connect}, unreachable: map[string]error{}}
	if mirror != "" {
		var err error
		if f.mirror, err = url.Parse(mirror); err != nil {
			return nil, fmt.Errorf("read the address of the mirror: %w", err)
		}
		if f.mirror.Scheme != "file" && !f.allowed(f.mirror) {
			return nil, fmt.Errorf("the mirror %s must begin with https:// or file://, or with http:// on this machine", f.mirror.Redacted())
		}
	}
	proxyFor := httpproxy.FromEnvironment().ProxyFunc()
	transport := &http.Transport{
		Proxy:                 func(request *http.Request) (*url.URL, error) { return proxyFor(request.URL) },
		DialContext:           f.dialer.DialContext,
		TLSHandshakeTimeout:   limits.tls,
		ResponseHeaderTimeout: limits.header,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   1,
		// An archive is kept as it is.
		DisableCompression: true,
	}
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	f.client = &http.Client{Transport: transport, CheckRedirect: func(request *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return &redirectError{fmt.Sprintf("more than %d redirects", maxRedirects)}
		}
		if !f.allowed(request.URL) {
			return &redirectError{fmt.Sprintf("redirect to %s, which does not begin with https://", request.URL.Redacted())}
		}
		return nil
	}}
	return f, nil
}

// allowed reports whether a server, or the user, may send a request to the address: it is https or, when the mirror is on loopback, http
// on loopback.
func (f *fetcher) allowed(address *url.URL) bool {
	if address.Scheme == "https" {
		return true
	}
	return address.Scheme == "http" && onLoopback(address) && f.mirror != nil && f.mirror.Scheme == "http" && onLoopback(f.mirror)
}

func onLoopback(address *url.URL) bool {
	host := address.Hostname()
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// at returns the address from which the file is read.
func (f *fetcher) at(address *url.URL) *url.URL {
	if f.mirror == nil {
		return address
	}
	mirrored := f.mirror.JoinPath(address.Host, address.Path)
	mirrored.RawQuery = address.RawQuery
	return mirrored
}

// get requests the file and calls read with the body and its length, which is negative if it is not known. It calls read once more for each
// further attempt. The header may be nil.
func (f *fetcher) get(ctx context.Context, address *url.URL, header http.Header, read func(body io.Reader, length int64) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.limits.total, fmt.Errorf("it took longer than %s", f.limits.total))
	defer cancel()
	for attempt := 1; ; attempt++ {
		again, err := f.try(ctx, address, header, read)
		if err == nil || !again || attempt == attempts {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(f.limits.pause):
		}
	}
}

// try makes one attempt, and reports whether another may succeed.
func (f *fetcher) try(ctx context.Context, address *url.URL, header http.Header, read func(io.Reader, int64) error) (again bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := f.known(address.Host); err != nil {
		return false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return false, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := f.client.Do(request)
	if err != nil {
		// The address is in the message of whoever calls this.
		var inURL *url.Error
		if errors.As(err, &inURL) {
			err = inURL.Err
		}
		var redirect *redirectError
		if errors.As(err, &redirect) {
			return false, err
		}
		return f.failed(ctx, address.Host, err, ended(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		err := &statusError{address: address.Redacted(), status: response.Status, code: response.StatusCode, challenge: response.Header.Get("WWW-Authenticate")}
		return err.code == http.StatusTooManyRequests || err.code >= http.StatusInternalServerError, err
	}
	body := &watchedBody{body: response.Body, stall: f.limits.stall}
	body.alarm = time.AfterFunc(body.stall, func() { cancel(errStalled) })
	defer body.alarm.Stop()
	if err := read(body, response.ContentLength); err != nil {
		if body.err == nil { // the reader did not like what it read
			return false, err
		}
		return f.failed(ctx, address.Host, err, true)
	}
	return false, nil
}

// ended reports whether a request failed because the other side ended the connection.
func ended(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// failed returns the error of a request that failed, and whether it may succeed when it is made again, as after a connection that the host
// ended. A host that does not answer is not asked again.
func (f *fetcher) failed(ctx context.Context, host string, err error, ended bool) (again bool, _ error) {
	switch {
	case errors.Is(context.Cause(ctx), errStalled):
		return false, f.mark(host, errStalled)
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case ended:
		return true, fmt.Errorf("%s ended the connection: %w", host, err)
	default:
		return false, f.mark(host, err)
	}
}

// known returns why the host is not asked again, if it is not.
func (f *fetcher) known(host string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unreachable[host]
}

func (f *fetcher) mark(host string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unreachable[host] = &unreachableError{host: host, err: err}
	return f.unreachable[host]
}

// watchedBody ends a response that sends nothing for a while.
type watchedBody struct {
	body  io.Reader
	alarm *time.Timer
	stall time.Duration
	err   error // of the last read, but for the end
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if n > 0 {
		b.alarm.Reset(b.stall)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// authorization returns the header that a registry wants for reading what everybody may read, from its challenge to a request without one.
func (f *fetcher) authorization(ctx context.Context, challenge string) (http.Header, error) {
	scheme, parameters, _ := strings.Cut(challenge, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, fmt.Errorf("the registry wants %q, which is not a token", scheme)
	}
	query := url.Values{}
	var realm *url.URL
	for _, found := range challengeParameter.FindAllStringSubmatch(parameters, -1) {
		switch found[1] {
		case "realm":
			var err error
			if realm, err = url.Parse(found[2]); err != nil {
				return nil, fmt.Errorf("read where the registry gives tokens: %w", err)
			}
		case "service", "scope":
			query.Set(found[1], found[2])
		}
	}
	if realm == nil || !f.allowed(realm) {
		return nil, errors.New("the registry names no address with https:// that gives tokens")
	}
	realm.RawQuery = query.Encode()
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := f.getJSON(ctx, realm, nil, &answer); err != nil {
		return nil, fmt.Errorf("ask for a token: %w", err)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	return http.Header{"Authorization": {"Bearer " + answer.Token}}, nil
}
