package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// attemptTimeout bounds one request; notification-controller works on an event for up to 15 s itself.
	attemptTimeout = 20 * time.Second
	// maxResponseSize is what is read of an answer, in bytes, so that the connection can be used again.
	maxResponseSize = 64 << 10
)

// outcome is how the delivery of a notification ended; also the value of the metric's label.
type outcome string

const (
	sent      outcome = "sent"
	duplicate outcome = "duplicate" // notification-controller had it within its rate limit interval
	rejected  outcome = "rejected"  // the receiver will not take it, however often it is sent
	expired   outcome = "expired"   // the receiver was unavailable for too long
	overflow  outcome = "overflow"  // the queue was full
	abandoned outcome = "abandoned" // the controller ended before it could be delivered
)

var outcomes = []outcome{sent, duplicate, rejected, expired, overflow, abandoned}

// sender posts notifications to one address, one at a time so that their order is kept.
type sender struct {
	address string
	client  *http.Client
	backoff wait.Backoff
}

func newSender(address string) (*sender, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		// The error would quote the address, and with it a password.
		return nil, errors.New("the address of the events receiver cannot be parsed as a URL")
	}
	if (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return nil, fmt.Errorf("the address of the events receiver must be an http or https URL, not %q", parsed.Redacted())
	}
	return &sender{
		address: address,
		client: &http.Client{
			Timeout: attemptTimeout,
			// A redirected POST becomes a GET: it would look delivered.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		backoff: wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 100, Cap: 15 * time.Second},
	}, nil
}

// deliver posts the notification and repeats that while the receiver is unavailable, until the notification expires or
// the context ends. The error explains an outcome other than sent and duplicate.
func (s *sender) deliver(ctx context.Context, item notification) (outcome, error) {
	backoff := s.backoff
	for {
		result, err := s.post(ctx, item.body)
		if err == nil || result == rejected {
			return result, err
		}
		delay := backoff.Step()
		if time.Now().Add(delay).After(item.expires) {
			return expired, err
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return abandoned, err
		}
	}
}

// post makes one attempt. An error without the outcome rejected may go away by itself.
func (s *sender) post(ctx context.Context, body []byte) (outcome, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address, bytes.NewReader(body))
	if err != nil {
		return rejected, fmt.Errorf("build the request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return "", fmt.Errorf("send the event: %w", err)
	}
	// The answer is in the status. Reading the body on lets the connection be used again; failing to does no harm.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxResponseSize))
	_ = response.Body.Close()
	switch {
	case response.StatusCode >= 200 && response.StatusCode < 300:
		return sent, nil
	case response.StatusCode == http.StatusTooManyRequests:
		return duplicate, nil
	case response.StatusCode >= 500:
		return "", fmt.Errorf("the events receiver answered %s", response.Status)
	default:
		return rejected, fmt.Errorf("the events receiver refused the event: %s", response.Status)
	}
}
