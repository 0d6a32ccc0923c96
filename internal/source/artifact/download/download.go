// Package download fetches an artifact into a file with fluxcd/pkg/http/fetch, as all Flux controllers do, for the store of the controller
// and for agents. That package has limits for downloads from addresses that tenants choose. This package works around some of them:
//
//   - Its client follows redirects to any host, and connects to any address. Here a request trace refuses redirects, and
//     addresses of metadata services of clouds or of this machine, before a byte is sent to them.
//   - It waits at least 5 s between tries. Here its retries are off, and Fetch retries instead.
//   - Its errors have no types except ErrFileNotFound, and contain the URL with its credentials. The status of an answer of 500 or more is
//     lost. Here the size of the file that it leaves tells whether the content is too large, the text of its error whether the digest is
//     wrong, and all messages are written anew.
//   - After the size limit it reads on until the body ends, which may never happen. Here the size of the file is watched.
//   - It does not notice a server that sends next to nothing. Here the file has to grow at the minimum throughput.
//   - There is no option for the client or its transport: root certificates are those of the system, up to 10 MiB of headers
//     are read, and a body with "Content-Encoding: gzip" is decompressed before its digest is computed. Where a transport is given, for
//     mutual TLS, transportFetcher takes its place. It can go with a version of the package that has the option WithTLSConfig (v0.30.1 has).
//   - It reads the file a second time for the digest.
package download

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/opencontainers/go-digest"
	_ "github.com/opencontainers/go-digest/blake3" // one of the algorithms that source-controller may be told to use
	"golang.org/x/net/http/httpproxy"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fluxcd/pkg/http/fetch"

	"github.com/stack-controller/stack-controller/internal/source/netguard"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// These are the errors that callers distinguish, with errors.Is. Every other error is a failure of the server, the network or this
// machine's disk, and the next attempt may succeed.
var (
	// ErrNotFound means that the server has no such file.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge means that the file has more bytes than the limit.
	ErrTooLarge = errors.New("too large")
	// ErrDigestMismatch means that the file does not have the wanted digest.
	ErrDigestMismatch = errors.New("digest mismatch")

	errRedirect  = errors.New("redirected, which is refused")
	errOtherHost = errors.New("redirected to another host, which is refused")
	errLinkLocal = errors.New("the host has a link-local address, which is refused")
	errNoAnswer  = errors.New("no complete answer from the server")
	errServer    = errors.New("the server answers with an error of its own (5xx)")
)

// HostOverrideVariable is the environment variable that every Flux controller knows for runs outside of a cluster: it replaces host and
// port of every URL.
const HostOverrideVariable = "SOURCE_CONTROLLER_LOCALHOST"

const (
	// firstWait is the time before the second try; each further wait is three times as long.
	firstWait = 200 * time.Millisecond
	// watchInterval is how often the size of a file is compared with the limit while it grows.
	watchInterval = 250 * time.Millisecond
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
	// Untrusted says that the author of the URL must learn nothing about the network of this process, and must not use it: addresses that
	// netguard refuses are refused, and why a server cannot be reached is only logged.
	Untrusted bool
	// Transport sends the requests; by default that of fluxcd/pkg/http/fetch.
	Transport http.RoundTripper
	// TLSAdvice is added to the message about an answer of 400, which is how a server that speaks TLS answers to plain HTTP.
	TLSAdvice string
	// Window is how long a server may send less than throughput.Minimum; default throughput.Window.
	Window time.Duration
	// Log receives the digest of refused content, and the reason why an untrusted server cannot be reached.
	Log logr.Logger
}

// Downloader downloads files. It is safe for concurrent use.
type Downloader struct {
	options Options
	fetcher fetcher
	// proxyOf returns the proxy for a URL, nil if there is none.
	proxyOf func(*url.URL) (*url.URL, error)
}

// fetcher is what a Downloader needs of fetch.ArchiveFetcher.
type fetcher interface {
	FetchWithContext(ctx context.Context, url, wanted, dir string) error
}

// New makes a Downloader.
func New(options Options) *Downloader {
	if options.Window == 0 {
		options.Window = throughput.Window
	}
	// One byte more than allowed distinguishes content that goes on from content that ends at the limit.
	limit, host := options.MaxSize+1, os.Getenv(HostOverrideVariable)
	if options.Transport != nil {
		return &Downloader{options: options, fetcher: &transportFetcher{client: &http.Client{Transport: options.Transport}, limit: limit, host: host},
			proxyOf: func(*url.URL) (*url.URL, error) { return nil, nil }}
	}
	return &Downloader{options: options, proxyOf: httpproxy.FromEnvironment().ProxyFunc(), fetcher: fetch.New(
		fetch.WithRetries(0),
		fetch.WithMaxDownloadSize(int(limit)),
		fetch.WithHostnameOverwrite(host),
		fetch.WithFileName(fileName),
	)}
}

// Fetch downloads the file at the URL into the directory, verifies its digest, and returns its path. The directory must not have a file of
// that name yet. An error contains nothing of the URL or of the content, and leaves nothing in the directory.
func (d *Downloader) Fetch(ctx context.Context, url string, wanted digest.Digest, dir string) (path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	backoff := wait.Backoff{Duration: firstWait, Factor: 3, Jitter: 0.1, Steps: 1 + d.options.Retries}
	var failure error
	ended := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		again, err := d.try(ctx, url, wanted, dir)
		if failure == nil || err == nil || ctx.Err() == nil { // the end of the time is not why the tries before it failed
			failure = err
		}
		return !again, nil
	})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && failure != nil && !errors.Is(failure, context.DeadlineExceeded):
		return "", fmt.Errorf("not complete after %s: %w", d.options.Timeout, failure)
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && (ended != nil || failure != nil):
		return "", fmt.Errorf("not complete after %s: %w", d.options.Timeout, context.DeadlineExceeded)
	case failure != nil:
		return "", failure
	case ended != nil:
		return "", ended
	}
	return filepath.Join(dir, fileName), nil
}

// try downloads once, and reports whether another try may help.
func (d *Downloader) try(ctx context.Context, url string, wanted digest.Digest, dir string) (again bool, err error) {
	path := filepath.Join(dir, fileName)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.watch(ctx, cancel, path)()
	ctx, stop := throughput.Require(ctx, d.options.Window, 0, func() int64 { return sizeOf(path) })
	defer stop()
	err = d.fetcher.FetchWithContext(d.guarded(ctx, cancel, url), url, wanted.String(), dir)
	again, err = d.classify(ctx, err, path, wanted)
	if err != nil {
		if removed := os.Remove(path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			return false, errors.Join(err, removed)
		}
	}
	return again, err
}

// watch ends the download once the file is larger than the limit. The function that it returns ends the watch.
func (d *Downloader) watch(ctx context.Context, cancel context.CancelCauseFunc, path string) (stop func()) {
	ended := make(chan struct{})
	ctx, stopWatch := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, func(context.Context) {
			if d.isTooLarge(path) {
				cancel(ErrTooLarge)
			}
		}, watchInterval)
	}()
	return func() { stopWatch(); <-ended }
}

func (d *Downloader) isTooLarge(path string) bool { return sizeOf(path) > d.options.MaxSize }

// sizeOf returns the size of a file, 0 when there is none.
func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// classify finds out from an error of the fetcher, and from the file that it left, what happened, and reports whether another try may help.
func (d *Downloader) classify(ctx context.Context, err error, path string, wanted digest.Digest) (again bool, _ error) {
	var slow *throughput.Error
	switch {
	case d.isTooLarge(path):
		return false, fmt.Errorf("%w: more than the limit of %d bytes", ErrTooLarge, d.options.MaxSize)
	case err == nil:
		return false, nil
	case errors.Is(err, fetch.ErrFileNotFound):
		return false, fmt.Errorf("%w: the server answers 404 Not Found", ErrNotFound)
	case isRefusal(context.Cause(ctx)), errors.As(context.Cause(ctx), &slow):
		return false, context.Cause(ctx)
	case isDiskError(err):
		return false, err
	case errors.Is(err, ErrDigestMismatch), strings.Contains(err.Error(), "failed to verify archive"):
		d.logDigest(path, wanted)
		return false, fmt.Errorf("%w: expected %s", ErrDigestMismatch, wanted)
	}
	again, err = d.serverError(err)
	if d.options.Untrusted && again && !errors.Is(err, errServer) {
		d.options.Log.Info("no complete answer from the server of an artifact", "problem", fmt.Sprintf("%.500s", err))
		return again, errNoAnswer
	}
	return again, err
}

// isRefusal reports whether the guard ended the request.
func isRefusal(cause error) bool {
	return errors.Is(cause, errRedirect) || errors.Is(cause, errOtherHost) || errors.Is(cause, errLinkLocal) || errors.Is(cause, netguard.ErrRefused)
}

// logDigest writes which digest the file has.
func (d *Downloader) logDigest(path string, wanted digest.Digest) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	if computed, err := wanted.Algorithm().FromReader(file); err == nil {
		d.options.Log.Info("content does not have its digest", "expected", wanted, "computed", computed)
	}
}

// explainedError is an error of a transport with an explanation for users. Its message is for the log. An example is spiffe.Error, whose
// package agents do not need.
type explainedError interface {
	error
	Explanation() string
}

// answered matches the error of the fetcher for an answer with a status below 500.
var answered = regexp.MustCompile(`\(status: (\d{3})[^()]*\)$`)

// serverError returns the error for a failure of the server or the connection. It contains no text of the server.
func (d *Downloader) serverError(err error) (again bool, _ error) {
	var (
		requested *url.Error
		explained explainedError
	)
	switch match := answered.FindStringSubmatch(err.Error()); {
	case errors.As(err, &explained):
		d.options.Log.Info("no mutual TLS with the server of an artifact", "problem", fmt.Sprintf("%.500s", explained))
		return false, errors.New(explained.Explanation())
	case match != nil:
		code, _ := strconv.Atoi(match[1])
		switch {
		case code == http.StatusGone:
			return false, fmt.Errorf("%w: the server answers 410 Gone", ErrNotFound)
		case code == http.StatusBadRequest && d.options.TLSAdvice != "":
			return false, fmt.Errorf("the server answers 400 Bad Request: %s", d.options.TLSAdvice)
		}
		return false, fmt.Errorf("the server answers %d %s", code, http.StatusText(code))
	case errors.As(err, &requested) && strings.Contains(requested.Err.Error(), "Location header"):
		return false, errors.New("redirected to an invalid location")
	case errors.As(err, &requested) && strings.Contains(requested.Err.Error(), "stopped after"):
		return false, errors.New("redirected too often")
	case errors.As(err, &requested):
		return true, requested.Err
	case errors.Is(err, errServer), strings.Contains(err.Error(), "giving up after"):
		return true, errServer
	}
	for cause := errors.Unwrap(err); cause != nil; cause = errors.Unwrap(err) {
		err = cause
	}
	return true, fmt.Errorf("read the content: %w", err)
}

// isDiskError reports whether this machine's disk failed, and not the server or the connection.
func isDiskError(err error) bool {
	var pathError *fs.PathError
	return errors.As(err, &pathError)
}

// guard watches the connections of one request.
type guard struct {
	cancel    context.CancelCauseFunc
	redirects bool
	check     func(netip.Addr) error

	mu       sync.Mutex
	host     string // of the first connection, with its port
	answered bool
	refused  bool
}

// guarded returns a context for one request. The context is cancelled when a redirect leads to a place that is not allowed, or when a host
// has an address that is refused. If the client gets a connection nevertheless, the connection is closed before the request is written to
// it. Behind a proxy the guard cannot distinguish hosts; the proxy decides then.
func (d *Downloader) guarded(ctx context.Context, cancel context.CancelCauseFunc, address string) context.Context {
	g := &guard{cancel: cancel, redirects: d.options.Redirects, check: checkLinkLocal}
	// If the host is replaced, or there is a proxy, the operator of the controller chose what is connected to.
	if d.options.Untrusted && os.Getenv(HostOverrideVariable) == "" && !d.isProxied(address) {
		g.check = netguard.Check
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: g.getConn, ConnectStart: g.connectStart, GotConn: g.gotConn, GotFirstResponseByte: g.gotAnswer,
	})
}

// isProxied reports whether requests for the URL go through a proxy.
func (d *Downloader) isProxied(address string) bool {
	parsed, err := url.Parse(address)
	if err != nil {
		return false
	}
	proxy, err := d.proxyOf(parsed)
	return err == nil && proxy != nil
}

func checkLinkLocal(address netip.Addr) error {
	if address.Unmap().IsLinkLocalUnicast() {
		return errLinkLocal
	}
	return nil
}

// getConn is called for the request, once more when a connection that was used before turns out to be closed, and after each redirect.
func (g *guard) getConn(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.host == "":
		g.host = host
	case host != g.host:
		g.refuse(errOtherHost)
	case g.answered && !g.redirects:
		g.refuse(errRedirect)
	}
}

func (g *guard) connectStart(_, address string) {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return
	}
	if err := g.check(parsed.Addr()); err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.refuse(err)
	}
}

func (g *guard) gotConn(got httptrace.GotConnInfo) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused {
		_ = got.Conn.Close() // The request fails either way.
	}
}

func (g *guard) gotAnswer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answered = true
}

// refuse ends the request. The lock is held.
func (g *guard) refuse(why error) {
	g.refused = true
	g.cancel(why)
}
