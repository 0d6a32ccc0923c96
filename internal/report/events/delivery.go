package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

const (
	// attemptTimeout bounds one request; notification-controller works on an event for up to 15 s itself.
	attemptTimeout = 20 * time.Second
	// maxResponseSize is how much of a response is read, in bytes, so that the connection can be used again.
	maxResponseSize = 64 << 10
	// The wait between two attempts grows from the shortest to the longest.
	shortestWait = 500 * time.Millisecond
	longestWait  = 15 * time.Second
)

// outcome is how the delivery of a notification ended; also the value of the metric's label.
type outcome string

const (
	sent      outcome = "sent"
	duplicate outcome = "duplicate" // notification-controller had it within its rate limit interval
	rejected  outcome = "rejected"  // the receiver does not accept it, however often it is sent
	expired   outcome = "expired"   // the receiver was unavailable for too long
	unknown   outcome = "unknown"   // the host of the receiver does not exist, as in a cluster without notification-controller
	overflow  outcome = "overflow"  // the queue was full
	abandoned outcome = "abandoned" // the controller ended before it could be delivered
)

var outcomes = []outcome{sent, duplicate, rejected, expired, unknown, overflow, abandoned}

// checkAddress returns an error for an address to which nothing can be posted.
func checkAddress(address string) error {
	parsed, err := url.Parse(address)
	if err != nil {
		// The error would quote the address, and with it a password.
		return errors.New("the address of the events receiver cannot be parsed as a URL")
	}
	if (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return fmt.Errorf("the address of the events receiver must be an http or https URL, not %q", parsed.Redacted())
	}
	return nil
}

// deliver posts the notification and repeats that while the receiver is unavailable, until the notification expires or
// the context ends. The error explains an outcome other than sent and duplicate.
func (r *Recorder) deliver(ctx context.Context, item notification) (outcome, error) {
	client := retryablehttp.Client{
		HTTPClient:   r.client,
		RetryWaitMin: shortestWait,
		RetryWaitMax: longestWait,
		RetryMax:     math.MaxInt32,
		// The response is left out: a Retry-After of an hour would delay the notifications of all other objects.
		Backoff: func(shortest, longest time.Duration, attempt int, _ *http.Response) time.Duration {
			return retryablehttp.DefaultBackoff(shortest, longest, attempt, nil)
		},
		CheckRetry: func(ctx context.Context, response *http.Response, err error) (bool, error) {
			return (err != nil || isUnavailable(response)) && time.Now().Before(item.expires), ctx.Err()
		},
	}
	request, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, r.options.Address, item.body)
	if err != nil {
		return rejected, fmt.Errorf("build the request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	var unresolved *net.DNSError
	switch {
	case ctx.Err() != nil:
		return abandoned, ctx.Err()
	case errors.As(err, &unresolved) && unresolved.IsNotFound:
		return unknown, fmt.Errorf("the host of --events-addr does not exist; remove the flag if there is no notification-controller: %w", err)
	case err != nil:
		return expired, fmt.Errorf("send the event: %w", err)
	}
	// The status code is the answer. The body is read to its end so that the connection can be used again; an error there does no harm.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxResponseSize))
	_ = response.Body.Close()
	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return sent, nil
	case status == http.StatusTooManyRequests:
		return duplicate, nil
	case speaksTLS(response):
		return expired, errors.New("the events receiver requires TLS; --authorized-event-server-spiffe-id makes this controller use mutual TLS")
	case status >= http.StatusInternalServerError:
		return expired, fmt.Errorf("the events receiver answered %s", response.Status)
	}
	return rejected, fmt.Errorf("the events receiver refused the event: %s", response.Status)
}

// isUnavailable reports whether the receiver may accept the same notification later.
func isUnavailable(response *http.Response) bool {
	return response.StatusCode >= http.StatusInternalServerError || speaksTLS(response)
}

// speaksTLS reports whether the response is the one with which a TLS server written in Go answers plain HTTP: 400 in version 1.0.
func speaksTLS(response *http.Response) bool {
	return response.StatusCode == http.StatusBadRequest && !response.ProtoAtLeast(1, 1)
}
