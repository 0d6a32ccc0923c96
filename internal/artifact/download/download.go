// Package download fetches an artifact into a file, for the store of the controller and for agents.
//
// It bounds what a server that tenants choose can cost: where a connection goes, how much is sent, how slowly, and what an error says.
// fluxcd/pkg/http/fetch, which Flux controllers use, has the same purpose and the same environment variable. It is not used because none
// of these bounds can be given to it: it follows redirects to any host, connects to any address, reads on after the limit of the size,
// waits at least 5 s between tries, and puts the URL with its credentials into errors without a type.
package download

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/opencontainers/go-digest"
	_ "github.com/opencontainers/go-digest/blake3" // one of the algorithms that source-controller may be told to use
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/stack-controller/stack-controller/internal/netguard"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// What a caller decides on; use errors.Is. Every other error is a failure of the server, the network or this machine's disk,
// which may be gone at the next attempt.
var (
	// ErrNotFound means that the server has no such file.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge means that the file has more bytes than the limit.
	ErrTooLarge = errors.New("too large")
	// ErrDigestMismatch means that the file does not have the wanted digest.
	ErrDigestMismatch = errors.New("digest mismatch")

	errRedirect  = errors.New("redirected, which is refused")
	errOtherHost = errors.New("redirected to another host, which is refused")
	errTooOften  = errors.New("redirected too often")
	errLinkLocal = errors.New("the host has a link-local address, which is refused")
	errNoAnswer  = errors.New("no complete answer from the server")
)

// hostOverrideVariable is the environment variable that every Flux controller knows for runs outside of a cluster: it replaces host and
// port of every URL.
const hostOverrideVariable = "SOURCE_CONTROLLER_LOCALHOST"

const (
	// firstWait is the time before the second try; each further wait is three times as long.
	firstWait = 200 * time.Millisecond
	// maxRedirects is how many redirects are followed where they are allowed.
	maxRedirects = 10
	// maxHeaderBytes bounds the headers of an answer in bytes.
	maxHeaderBytes = 256 << 10
	// fileName is the name of the file in its directory.
	fileName = "artifact"
)

// Options of a Downloader.
type Options struct {
	// MaxSize of a file in bytes.
	MaxSize int64
	// Retries is how often a download is tried again, within about a second, when the server or the connection fails.
	Retries int
	// Timeout bounds a download with all its tries.
	Timeout time.Duration
	// Redirects allows redirects to another path of the same host and port.
	Redirects bool
	// Untrusted says that whoever wrote the URL must learn nothing about the network of this process, and not use it: addresses that
	// netguard refuses are refused, and why a server cannot be reached is only logged.
	Untrusted bool
	// Window is how long a server may send less than throughput.Minimum; default throughput.Window.
	Window time.Duration
	// Log tells which digest content has that was refused, and why an untrusted server cannot be reached.
	Log logr.Logger
}

// Downloader downloads files. It is safe for concurrent use.
type Downloader struct {
	options Options
	client  *http.Client
	// host replaces the host of every URL; empty for none.
	host string
}

// New makes a Downloader. The environment is read now.
func New(options Options) *Downloader {
	options.Window = cmp.Or(options.Window, throughput.Window)
	d := &Downloader{options: options, host: os.Getenv(hostOverrideVariable)}
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: refuseLinkLocal}
	// Where the host is replaced, it is the operator of the controller who chose it.
	if options.Untrusted && d.host == "" {
		dialer.Control = netguard.Control
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialer.DialContext
	transport.DisableCompression = true // the digest is that of what is served
	transport.MaxResponseHeaderBytes = maxHeaderBytes
	d.client = &http.Client{Transport: transport, CheckRedirect: d.checkRedirect}
	return d
}

// refuseLinkLocal is for net.Dialer.Control, which is called for each address that a name was resolved to.
func refuseLinkLocal(_, address string, _ syscall.RawConn) error {
	if parsed, err := netip.ParseAddrPort(address); err == nil && parsed.Addr().Unmap().IsLinkLocalUnicast() {
		return errLinkLocal
	}
	return nil
}

func (d *Downloader) checkRedirect(request *http.Request, via []*http.Request) error {
	switch {
	case hostOf(request.URL) != hostOf(via[0].URL):
		return errOtherHost
	case !d.options.Redirects:
		return errRedirect
	case len(via) >= maxRedirects:
		return errTooOften
	}
	return nil
}

// hostOf returns host and port.
func hostOf(u *url.URL) string {
	ports := map[string]string{"http": "80", "https": "443"}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), cmp.Or(u.Port(), ports[u.Scheme]))
}

// Fetch downloads what the URL has into the directory, which must have no file of the name that is returned, and verifies its
// digest. The error says nothing of the URL, and nothing of the content. Nothing is left in the directory after it.
func (d *Downloader) Fetch(ctx context.Context, url string, wanted digest.Digest, dir string) (path string, err error) {
	path = filepath.Join(dir, fileName)
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	backoff := wait.Backoff{Duration: firstWait, Factor: 3, Jitter: 0.1, Steps: 1 + d.options.Retries}
	var failure error
	ended := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		var again bool
		again, failure = d.try(ctx, url, wanted, path)
		return !again, nil
	})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && (ended != nil || failure != nil):
		return "", fmt.Errorf("not complete after %s: %w", d.options.Timeout, context.DeadlineExceeded)
	case failure != nil:
		return "", failure
	case ended != nil:
		return "", ended
	}
	return path, nil
}

// try downloads once, and reports whether another try may help.
func (d *Downloader) try(ctx context.Context, url string, wanted digest.Digest, path string) (again bool, err error) {
	var received throughput.Counter
	ctx, stop := throughput.Require(ctx, d.options.Window, 0, received.Transferred)
	defer stop()
	response, err := d.get(ctx, url)
	if err != nil {
		return d.explain(ctx, err)
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusNotFound || code == http.StatusGone:
		return false, fmt.Errorf("%w: the server answers %d %s", ErrNotFound, code, http.StatusText(code))
	case code != http.StatusOK:
		mayPass := code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
		return mayPass, fmt.Errorf("the server answers %d %s", code, http.StatusText(code))
	}
	digester := wanted.Algorithm().Digester()
	// One byte more than allowed tells content that goes on from content that ends at the limit.
	content := io.TeeReader(io.LimitReader(response.Body, d.options.MaxSize+1), io.MultiWriter(digester.Hash(), &received))
	size, err := save(path, content)
	switch {
	case size > d.options.MaxSize:
		err = fmt.Errorf("%w: more than the limit of %d bytes", ErrTooLarge, d.options.MaxSize)
	case errors.As(err, new(*fs.PathError)): // of this machine's disk
	case err != nil:
		again, err = d.explain(ctx, fmt.Errorf("read the content: %w", err))
	case digester.Digest() != wanted:
		d.options.Log.Info("content does not have its digest", "expected", wanted, "computed", digester.Digest())
		err = fmt.Errorf("%w: expected %s", ErrDigestMismatch, wanted)
	}
	if err != nil {
		if removed := os.RemoveAll(path); removed != nil {
			return false, errors.Join(err, removed)
		}
	}
	return again, err
}

func (d *Downloader) get(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if d.host != "" {
		request.URL.Host, request.Host = d.host, d.host
	}
	return d.client.Do(request)
}

// save writes the content into a new file.
func save(path string, content io.Reader) (size int64, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	size, err = io.Copy(file, content)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return size, err
}

// explain makes the message for a connection that failed, and reports whether another try may help.
func (d *Downloader) explain(ctx context.Context, err error) (again bool, _ error) {
	if slow, ok := errors.AsType[*throughput.Error](context.Cause(ctx)); ok {
		return false, slow
	}
	if requested, ok := errors.AsType[*url.Error](err); ok {
		err = requested.Err // without the URL
	}
	for _, refusal := range []error{errRedirect, errOtherHost, errTooOften, errLinkLocal, netguard.ErrRefused} {
		if errors.Is(err, refusal) {
			return false, refusal // without the address
		}
	}
	switch {
	case strings.Contains(err.Error(), "Location header"): // which it quotes
		return false, errors.New("redirected to an invalid location")
	case d.options.Untrusted:
		d.options.Log.Info("no complete answer from the server of an artifact", "problem", fmt.Sprintf("%.500s", err))
		return true, errNoAnswer
	}
	return true, err
}
