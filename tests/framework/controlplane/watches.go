package controlplane

import (
	"io"
	"net/http"
	"sync"

	"k8s.io/client-go/rest"
)

// Watches are the watches of clients. A watch asks for the rights only when it begins, and the API server ends it after some minutes.
type Watches struct {
	mu   sync.Mutex
	open []io.Closer
}

// Of adds the watches of the clients that are made with the configuration from now on.
func (w *Watches) Of(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return watching{next, w} })
}

// Interrupt ends the watches that run. The clients begin others.
func (w *Watches) Interrupt() {
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	for _, body := range open {
		_ = body.Close()
	}
}

type watching struct {
	http.RoundTripper
	watches *Watches
}

func (t watching) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err == nil && request.URL.Query().Has("watch") {
		t.watches.mu.Lock()
		defer t.watches.mu.Unlock()
		t.watches.open = append(t.watches.open, response.Body)
	}
	return response, err
}
