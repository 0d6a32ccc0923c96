package artifact

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// maxRedirects is more than a storage service behind an artifact's URL needs.
	maxRedirects = 3
	// maxResponseHeader bounds the headers of a response, in bytes.
	maxResponseHeader = 64 << 10
	// retryWait is the time before the second try; each further wait is three times as long.
	retryWait = 200 * time.Millisecond
)

var errRedirect = errors.New("redirected")

// newHTTPClient makes the one client of a store.
func newHTTPClient(options Options) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = options.TLS.Clone()
	transport.MaxResponseHeaderBytes = maxResponseHeader
	transport.MaxIdleConnsPerHost = DefaultConcurrency
	// The bytes that have the digest are the compressed ones.
	transport.DisableCompression = true
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}
}

func checkRedirect(request *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w more than %d times", errRedirect, maxRedirects)
	case request.URL.Scheme != "https" && request.URL.Scheme != via[0].URL.Scheme:
		return fmt.Errorf("%w from %s to %s", errRedirect, via[0].URL.Scheme, request.URL.Scheme)
	}
	return nil
}

// download brings the content to disk, trying again when the server or the connection fails.
// Its errors are of type *FetchError.
func (s *Store) download(ctx context.Context, from location) (*incoming, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.HTTPTimeout)
	defer cancel()
	backoff := wait.Backoff{Duration: retryWait, Factor: 3, Jitter: 0.1, Steps: 1 + s.options.HTTPRetries}

	var received *incoming
	var failure *FetchError
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		received, failure = s.try(ctx, from)
		return failure == nil || !failure.transient, nil
	})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && (err != nil || failure != nil):
		return nil, &FetchError{Kind: Unavailable, URL: from.shown,
			err: fmt.Errorf("not complete after %s: %w", s.options.HTTPTimeout, context.DeadlineExceeded)}
	case failure != nil:
		return nil, failure
	case err != nil:
		return nil, &FetchError{Kind: Unavailable, URL: from.shown, err: err}
	}
	return received, nil
}

// try makes one request.
func (s *Store) try(ctx context.Context, from location) (*incoming, *FetchError) {
	fail := func(kind Kind, transient bool, err error) *FetchError {
		return &FetchError{Kind: kind, URL: from.shown, err: err, transient: transient}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.url.String(), nil)
	if err != nil {
		return nil, fail(Unusable, false, errors.New("the URL is not fit for a request"))
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fail(Unavailable, !errors.Is(err, errRedirect), withoutURL(err))
	}
	defer response.Body.Close()

	switch code := response.StatusCode; code {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, fail(NotFound, false, fmt.Errorf("the server answers %d %s", code, http.StatusText(code)))
	default:
		return nil, fail(Unavailable, code >= 500, fmt.Errorf("the server answers %d %s", code, http.StatusText(code)))
	}
	if limit := s.options.Limits.MaxDownloadSize; response.ContentLength > limit {
		return nil, fail(TooLarge, false, fmt.Errorf("%w: %d bytes, more than the limit of %d bytes", errTooLarge, response.ContentLength, limit))
	}
	received, err := s.receive(response.Body, from.digest.Algorithm())
	switch {
	case errors.Is(err, errTooLarge):
		return nil, fail(TooLarge, false, err)
	case err != nil:
		return nil, fail(Unavailable, !isDiskError(err), fmt.Errorf("read the content: %w", err))
	}
	return received, nil
}

// withoutURL takes the URL, which may have a token in its query, out of a client's error.
func withoutURL(err error) error {
	var urlError *url.Error
	if errors.As(err, &urlError) {
		err = urlError.Err
	}
	if strings.Contains(err.Error(), "Location header") {
		return fmt.Errorf("%w to an invalid location", errRedirect)
	}
	return err
}
